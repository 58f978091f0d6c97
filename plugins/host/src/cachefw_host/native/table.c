/* The memory that peers may reach, and with which rights. */
#include "net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The first row that ends after the address. */
static uint64_t find(const cfw_table *table, uint64_t address)
{
    uint64_t low = 0, high = table->count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (table->rows[middle].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

int cfw_table_check(cfw_table *table, const cfw_piece *pieces, uint32_t count, uint32_t right,
                    uint32_t *piece_p)
{
    const cfw_row *row    = NULL;
    int            status = 0;

    pthread_mutex_lock(&table->lock);
    for (uint32_t index = 0; index < count; ++index) {
        uint64_t start = pieces[index].address, end;

        *piece_p = index;
        if (__builtin_add_overflow(start, pieces[index].length, &end)) {
            status = -ENXIO;
            break;
        }
        /* Pieces of one region mostly follow each other. */
        if (row == NULL || start < row->start || end > row->end) {
            uint64_t place = find(table, start);

            row = place < table->count ? &table->rows[place] : NULL;
            if (row == NULL || start < row->start || end > row->end) {
                status = -ENXIO;
                break;
            }
        }
        if ((row->rights & right) == 0) {
            status = -EACCES;
            break;
        }
    }
    pthread_mutex_unlock(&table->lock);
    return status;
}

int cfw_net_expose(cfw_net *net, uint64_t address, uint64_t length, uint32_t rights)
{
    cfw_table *table = &net->table;
    uint64_t   end, place;
    int        status = 0;

    if (length == 0 || rights > (CFW_RIGHT_READ | CFW_RIGHT_WRITE) ||
        __builtin_add_overflow(address, length, &end)) {
        return -EINVAL;
    }
    pthread_mutex_lock(&table->lock);
    place = find(table, address);
    if (place < table->count && table->rows[place].start < end) {
        cfw_row *row = &table->rows[place];

        status = row->start == address && row->end == end && row->rights == rights ? 0 : -EEXIST;
        goto out;
    }
    if (table->count == table->room) {
        uint64_t room = table->room ? 2 * table->room : 16;
        cfw_row *rows = realloc(table->rows, room * sizeof(*rows));

        if (rows == NULL) {
            status = -ENOMEM;
            goto out;
        }
        table->rows = rows;
        table->room = room;
    }
    memmove(&table->rows[place + 1], &table->rows[place],
            (table->count - place) * sizeof(*table->rows));
    table->rows[place] = (cfw_row){address, end, rights};
    table->count++;
out:
    pthread_mutex_unlock(&table->lock);
    return status;
}

static void cut(cfw_stream *stream, void *context)
{
    const cfw_row *row = context;

    if (stream->role == CFW_ROLE_SERVE && cfw_serve_touches(stream, row->start, row->end)) {
        cfw_stream_kill(stream, -ECONNABORTED);
    }
}

int cfw_net_conceal(cfw_net *net, uint64_t address)
{
    cfw_table *table = &net->table;
    cfw_row    row   = {0};
    uint64_t   place;

    pthread_mutex_lock(&table->lock);
    place = find(table, address);
    if (place < table->count && table->rows[place].start == address) {
        row = table->rows[place];
        table->count--;
        memmove(&table->rows[place], &table->rows[place + 1],
                (table->count - place) * sizeof(*table->rows));
    }
    pthread_mutex_unlock(&table->lock);
    if (row.end == 0) {
        return -ENXIO;
    }
    /* Whoever passed the check before is still at it, and is seen here; its
     * lock is held while it moves bytes. */
    cfw_net_each(net, cut, &row);
    return 0;
}
