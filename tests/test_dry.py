"""Dry runs: any machine's rules without the machine, over what a file or a model describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cachefw.cache import CacheDesc, DataType, Placement
from cachefw.cli import main
from cachefw.dry import DryCache, DryMemory, dry_run, grouped, joined, lay_out, pieces
from cachefw.errors import TransportUnavailable
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.plugins import catalogue
from cachefw.rules import Limits, Outcome

MIB = 2**20
GIB = 2**30
HAS_HCCS = "hccs" in catalogue.plugins()
HAS_RDMA = "rdma" in catalogue.plugins()
needs_hccs = pytest.mark.skipif(not HAS_HCCS, reason="cachefw-hccs is not installed")
needs_rdma = pytest.mark.skipif(not HAS_RDMA, reason="cachefw-rdma is not installed")


def plan(*arguments: str, **environ: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", **environ}).invoke(main, ["plan", *arguments])


def facts(*arguments: str) -> dict:
    return json.loads(plan(*arguments, "--json").output)


def written(tmp_path: Path, text: str, name: str = "cache.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def cache(addrs, size=2 * MIB, kind=MemoryKind.DEVICE, **more) -> DryCache:
    placement = Placement.DEVICE if kind is MemoryKind.DEVICE else Placement.HOST
    return DryCache("kv", CacheDesc(len(addrs), (1, size), DataType.DT_INT8, placement), tuple(addrs), kind, **more)


def said(run, rule: str) -> list[Outcome]:
    return [group.outcome for step in run.steps for group in grouped(step.plan.findings) if group.rule == rule]


# ---------------------------------------------------------------------- the pieces


def test_regions_that_touch_are_taken_together() -> None:
    host, device = MemoryKind.HOST, MemoryKind.DEVICE
    regions = [
        MemoryRegion(a, n, k)
        for a, n, k in ((300, 100, device), (0, 100, host), (100, 100, host), (400, 1, device), (200, 5, device))
    ]
    assert joined(regions) == (MemoryRegion(0, 200, host), MemoryRegion(200, 5, device), MemoryRegion(300, 101, device))
    assert joined([]) == ()


@pytest.mark.parametrize(
    ("length", "largest", "lengths"),
    [
        (10, 4, [4, 4, 2]),
        (5 * MIB, 4 * MIB + 1, [4 * MIB, MIB]),
        (4 * MIB, 4 * MIB, [4 * MIB]),
        (128 * GIB, 64 * GIB - 1, [64 * GIB - 2 * MIB, 64 * GIB - 2 * MIB, 4 * MIB]),
    ],
)
def test_regions_are_split_under_the_limit(length: int, largest: int, lengths: list[int]) -> None:
    region = MemoryRegion(0x1000, length, MemoryKind.HOST)
    found = pieces(region, largest)
    assert [piece.length for piece in found] == lengths
    assert all(piece.length <= largest for piece in found)
    assert joined(found) == (region,)


def test_layouts_are_aligned_and_follow_one_another() -> None:
    desc = CacheDesc(3, (1, 3 * MIB), DataType.DT_INT8)
    first = lay_out(desc, MemoryKind.DEVICE)
    assert all(address % (2 * MIB) == 0 for address in first)
    assert first[1] - first[0] == 4 * MIB
    assert lay_out(desc, MemoryKind.DEVICE, 512, first[-1] + desc.size)[0] == first[-1] + desc.size
    assert lay_out(CacheDesc(-1, (1,), DataType.DT_INT8), MemoryKind.HOST) == ()


# ---------------------------------------------------------------------- rules of what is not here


def test_nothing_of_this_process_says_anything_about_made_up_addresses() -> None:
    run = dry_run(["host"], [cache([0x2000_0000_0000], kind=MemoryKind.HOST)])
    assert said(run, "host.mapped") == [Outcome.NOT_CHECKED]
    assert run.ok


@needs_hccs
@pytest.mark.parametrize(
    ("profile", "outcome"), [("A2", Outcome.REFUSED), ("A3", Outcome.REFUSED), ("950", Outcome.OK)]
)
def test_alignment_by_machine_without_the_machine(profile: str, outcome: Outcome) -> None:
    run = dry_run(["hccs"], [cache([0x12D6371B8000])], profile=profile)
    assert said(run, "hccs.alignment") == [outcome]
    assert said(dry_run(["hccs"], [cache([0x12D6371B8000])]), "hccs.alignment") == [Outcome.NOT_CHECKED]


@needs_hccs
def test_host_memory_by_machine() -> None:
    host = cache([0x2000_0000_0000], kind=MemoryKind.HOST)
    assert not dry_run(["hccs"], [host], profile="A2").ok
    assert said(dry_run(["hccs"], [host], profile="A3/fabric"), "hccs.device_only") == [Outcome.OK]


@needs_rdma
@pytest.mark.parametrize(
    ("profile", "kind", "outcome"),
    [
        ("A2", MemoryKind.HOST, Outcome.REFUSED),
        ("A2", MemoryKind.PINNED, Outcome.OK),
        ("950", MemoryKind.HOST, Outcome.OK),
        ("950", MemoryKind.PINNED, Outcome.REFUSED),
        ("no-ascend", MemoryKind.HOST, Outcome.OK),
    ],
)
def test_host_allocator_by_machine(profile: str, kind: MemoryKind, outcome: Outcome) -> None:
    run = dry_run(["rdma"], [cache([0x3000_0000_0000], kind=kind)], profile=profile)
    assert said(run, "rdma.host_allocator") == [outcome]
    assert said(run, "rdma.memlock") == said(run, "rdma.access") == [Outcome.NOT_CHECKED]


@needs_rdma
@pytest.mark.parametrize(("hdk", "ok"), [("A2/hdk25.2", False), ("A2/hdk25.5.0", True)])
def test_limits_of_the_driver_by_its_version(hdk: str, ok: bool) -> None:
    pools = [cache([0x3000_0000_0000 + i * 8 * GIB], 8 * GIB, MemoryKind.PINNED) for i in range(3)]
    run = dry_run(["rdma"], pools, profile=hdk, limits=Limits(host_bytes=1024 * GIB))
    assert run.ok is ok
    assert [step.plan.ok for step in run.steps] == [True, True, ok]


@needs_rdma
def test_pieces_are_counted_where_a_machine_limits_regions() -> None:
    big = cache([0x3000_0000_0000], 130 * GIB, MemoryKind.PINNED)
    run = dry_run(["rdma"], [big], profile="A2", limits=Limits(host_bytes=1024 * GIB))
    assert run.steps[0].pieces == {"rdma": 3}
    assert said(run, "rdma.region_size") == [Outcome.REFUSED]


# ---------------------------------------------------------------------- over several registrations


def test_later_registrations_see_earlier_ones() -> None:
    first, second = cache([4 * MIB, 6 * MIB]), cache([6 * MIB + 1, 20 * MIB])
    run = dry_run(["host"], [first, second])
    assert said(run, "core.unique") == [Outcome.OK, Outcome.REFUSED]


def test_addresses_of_all_caches_count_together() -> None:
    caches = [cache([(1000 + i * 200 + j) * 2 * MIB for j in range(120)], kind=MemoryKind.HOST) for i in range(3)]
    run = dry_run(["host"], caches)
    assert said(run, "core.limit.addresses") == [Outcome.OK, Outcome.OK, Outcome.REFUSED]
    assert any("describe them as fewer" in text for text in run.changes())
    assert dry_run(["host"], caches, limits=Limits(addresses=360)).ok


def test_caches_inside_memory_are_views() -> None:
    memory = DryMemory("pool", MemoryRegion(0x2000_0000_0000, 64 * MIB, MemoryKind.HOST), True)
    view = cache([0x2000_0000_0000, 0x2000_0000_0000], kind=MemoryKind.HOST, remote_accessible=True)
    run = dry_run(["host"], [view], [memory])
    assert run.ok
    assert (len(run.steps[1].plan.regions), run.steps[1].plan.views) == (0, 2)


def test_a_link_forbids_device_memory() -> None:
    assert said(dry_run(["host"], [cache([4 * MIB])], linked=True), "core.order") == [Outcome.REFUSED]


def test_transports_have_to_be_installed() -> None:
    with pytest.raises(TransportUnavailable, match="did you mean 'host'"):
        dry_run(["hsot"], [cache([4 * MIB])])


# ---------------------------------------------------------------------- models


@needs_hccs
def test_a_model_on_a_machine() -> None:
    told = facts("--model", "llama-3.1-8b", "--tp", "2", "--tokens", "131072", "--transport", "hccs", "--profile", "A2")
    (step,) = told["steps"]
    # 131,072 tokens x 4 heads x 128 elements x 2 bytes, for keys and values of 32 layers.
    assert (step["addresses"], step["bytes"]) == (64, 131072 * 4 * 128 * 2 * 64)
    assert told["ok"]
    assert step["joined"] == [{"address": 0x1000_0000_0000, "length": step["bytes"], "kind": "device memory"}]
    assert told["model"]["fits"] == {"blocks": 51200, "tokens": 819200, "limit_bytes": 50 * GIB}


@needs_hccs
def test_misaligned_tensors_of_a_model_are_refused_in_words() -> None:
    result = plan(
        "--model", "qwen2.5-7b", "--tokens", "1040", "--align", "512", "--transport", "hccs", "--profile", "A3"
    )
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "hccs.alignment" in text
    assert "the same at" in text
    assert "allocate 2,097,152 bytes more than needed" in text
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("arguments", "addresses", "heads"),
    [
        (["--model", "llama-3.1-8b", "--tp", "16"], 64, 1),
        (["--model", "llama-3.1-8b", "--pp", "3"], 22, 8),
        (["--model", "deepseek-v3", "--tp", "8"], 61, 1),
        (["--model", "qwen2.5-7b", "--tp", "4", "--block-size", "128"], 56, 1),
    ],
)
def test_shares_of_a_rank(arguments: list[str], addresses: int, heads: int) -> None:
    told = facts(*arguments, "--tokens", "4096", "--memory", "host", "--transport", "host")
    (step,) = told["steps"]
    size = 576 if "deepseek-v3" in arguments else 128
    assert (step["addresses"], step["bytes"]) == (addresses, addresses * 4096 * heads * size * 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either FILE or --model"),
        (["x.json", "--model", "deepseek-v3"], "give either FILE or --model"),
        (["--model", "lama-3.1"], "did you mean llama-3.1-8b?"),
        (["--model", "llama-3.1-8b", "--tp", "3"], "8 key/value heads do not divide over 3 ranks"),
        (["--model", "llama-3.1-8b", "--pp", "33"], "has 32 layers"),
        (["--model", "llama-3.1-8b", "--tokens", "0"], "0 is no number of tokens"),
        (["--model", "llama-3.1-8b", "--data-type", "bf17"], "bf16"),
        (["--model", "llama-3.1-8b", "--transport", "host", "--profile", "A2"], "host knows no profiles"),
        (["--modle", "llama-3.1-8b"], "--model"),
    ],
)
def test_usage_errors_exit_2(arguments: list[str], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@needs_hccs
def test_profiles_that_are_misspelt_get_near_matches() -> None:
    result = plan("--model", "deepseek-v3", "--transport", "hccs", "--profile", "a3/fabrik")
    assert result.exit_code == 2
    assert "no profile 'a3/fabrik'; did you mean A3/fabric" in " ".join(result.output.split())


def test_transports_that_are_misspelt_get_near_matches() -> None:
    result = plan("--model", "deepseek-v3", "--transport", "hsot")
    assert result.exit_code == 1
    assert "did you mean 'host'?" in result.output


def test_strict_counts_what_was_not_checked() -> None:
    arguments = ["--model", "deepseek-v3", "--tokens", "4096", "--transport", "host"]
    assert plan(*arguments).exit_code == 0
    assert plan(*arguments, "--strict").exit_code == 1
    assert "1 not checked here" in plan(*arguments).output
    assert "host.kind" in plan(*arguments, "-v").output


# ---------------------------------------------------------------------- files

WHOLE = """
transports: [host]
limits: {addresses: 3, host_gib: 0.5}
memories:
  - {name: pool, address: 0x200000000000, length: 0x4000000, memory: host, remote_accessible: true}
caches:
  - {name: views, tensors: 2, shape: [4, 16, 8, 128], data_type: bf16, memory: host, base: 0x200000000000}
  - {name: own, tensors: 2, shape: [4, 1048576], data_type: int8, memory: host,
     addresses: ["0x300000000000", 0x310000000000]}
"""


def test_a_description_in_yaml_and_in_json(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    import yaml

    told = facts(written(tmp_path, WHOLE))
    assert [(step["name"], step["operation"], step["addresses"], step["views"]) for step in told["steps"]] == [
        ("pool", "register_memory", 1, 0),
        ("views", "register_blocks_cache", 2, 2),
        ("own", "register_blocks_cache", 2, 0),
    ]
    (refused,) = (row for row in told["steps"][2]["rules"] if row["outcome"] == "refused")
    assert (refused["rule"], refused["source"]) == ("core.limit.addresses", "the description")
    assert told["limits"]["host_bytes"] == GIB // 2
    same = written(tmp_path, json.dumps(yaml.safe_load(WHOLE)), "cache.json")
    assert facts(same) == told


def test_broken_yaml_and_json_have_line_and_column(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = written(tmp_path, "caches:\n  - tensors: 2\n   shape: [1\n")
    result = plan(path)
    assert result.exit_code == 1
    assert f"{path}, line 3, column 4: no YAML: " in result.output
    path = written(tmp_path, '{"caches": [\n  {"tensors": 2,}\n]}', "cache.json")
    result = plan(path)
    assert result.exit_code == 1
    assert f"{path}, line 2, column 1" in result.output
    assert '{"tensors": 2,}' in result.output


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "transport": ["host"],
            "linked": "yes",
            "limits": {"addresses": -1},
            "memories": [{"address": "zero", "length": 4}],
            "caches": [
                {"tensors": 2, "shape": [1, 1.5]},
                {"tensor": 2, "shape": [1], "data_type": "bf61", "memory": "dvice"},
                {"tensors": 1, "shape": [1], "addresses": [1], "base": 5},
                7,
            ],
        }
    )
    result = plan(written(tmp_path, text, "cache.json"))
    assert result.exit_code == 1
    for said in (
        "unknown name 'transport'; did you mean transports?",
        "linked must be true or false, not 'yes'",
        "limits.addresses must be a number above 0, not -1",
        "memories[0].address must be a whole number or a string as '0x1000', not 'zero'",
        "caches[0].shape must be a list of whole numbers, not [1, 1.5]",
        "caches[1] has an unknown name 'tensor'; did you mean tensors?",
        "caches[1].tensors is missing",
        "caches[1].data_type is 'bf61'; did you mean bf16?",
        "caches[1].memory is 'dvice'; did you mean device?",
        "caches[2].addresses must be",
        "caches[3] must be a mapping",
    ):
        assert said in result.output, said


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"caches": 3}', '{"caches": []}'])
def test_descriptions_of_nothing_are_refused(tmp_path: Path, text: str) -> None:
    result = plan(written(tmp_path, text, "cache.json"))
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert "Traceback" not in result.output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = plan(str(tmp_path / "none.json"))
    assert result.exit_code == 1
    assert "No such file" in result.output
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in plan(str(tmp_path / "bytes.json")).output


def test_yaml_without_pyyaml_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "yaml", None)
    result = plan(written(tmp_path, WHOLE))
    assert result.exit_code == 1
    assert "pip install 'cachefw[yaml]'" in result.output


@needs_hccs
def test_numbers_of_rules_the_core_refuses_are_not_hidden(tmp_path: Path) -> None:
    text = json.dumps({"caches": [{"tensors": 3, "shape": [0, -1], "addresses": [0, -5], "memory": "device"}]})
    result = plan(written(tmp_path, text, "cache.json"), "--transport", "hccs", "--profile", "A2")
    assert result.exit_code == 1
    for rule in ("core.count", "core.address", "core.size"):
        assert rule in result.output
