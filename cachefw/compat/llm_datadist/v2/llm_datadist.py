"""`LLMDataDist`: one instance for each process."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Sequence
from typing import Any

from cachefw.compat.llm_datadist.configs import LLMClusterInfo, LLMRole
from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.engine.options import parse
from cachefw.compat.llm_datadist.status import (
    LLMException,
    LLMStatusCode,
    failed,
    invalid,
    not_initialised,
    of_none,
)
from cachefw.compat.llm_datadist.utils.log import log
from cachefw.compat.llm_datadist.utils.utils import (
    check_dict,
    check_int32,
    check_isinstance,
    check_uint32,
    check_uint64,
    require,
)
from cachefw.compat.llm_datadist.v2._caches import RegisterMemStatus
from cachefw.compat.llm_datadist.v2.cache_manager import CacheManager
from cachefw.compat.llm_datadist.v2.config import LISTEN, EngineConfig, listen_options, role_name

__all__ = ["LLMDataDist"]


class LLMDataDist:
    """The one instance of a process: links, and the cache manager.

    Args:
        role: A label.
        cluster_id: Names this instance in its peers' keys.

    Raises:
        TypeError: A wrong type.
        ValueError: An id that is none of 64 bits.

    Thread safety: every method may be called from any thread, except that `init` and `finalize` come alone.
    """

    #: The live instance, or None.
    llm_engine_instance: LLMDataDist | None = None

    def __init__(self, role: LLMRole, cluster_id: int) -> None:
        check_isinstance("role", role, LLMRole)
        self._role: LLMRole | None = role
        self._cluster_id = check_uint64("cluster_id", cluster_id)
        self._engine: Engine | None = None
        self._engine_options: dict[str, str] = {}
        self._cache_manager: CacheManager | None = None
        self._enable_cache_mgr = False

    @property
    def _is_initialized(self) -> bool:
        return self._engine is not None

    @staticmethod
    def _role_to_str(role: LLMRole) -> str:
        return role_name(role)

    # ------------------------------------------------------------------ life

    def init(self, options: dict[str, str]) -> None:
        """Start. On an initialised instance it does nothing.

        Args:
            options: Best made by `LLMConfig.generate_options`; not modified.

        Raises:
            LLMException: With `LLM_FAILED`: another instance lives in this process, or the address cannot be listened
                on. With `LLM_PARAM_INVALID`: a wrong option. Nothing stays open.
            ModuleNotFoundError: The options ask for the first generation's interface, which is not there.
        """
        if self._engine is not None:
            return
        live = LLMDataDist.llm_engine_instance
        if live is not None and live._is_initialized:
            raise failed(
                LLMStatusCode.LLM_FAILED,
                f"cluster {live.cluster_id} is initialised in this process already; finalize() it first",
                "init",
            )
        config = EngineConfig(self._role, options)
        if not config.cache_manager:
            raise ModuleNotFoundError(
                "the first generation's interface (llm_datadist_v1) is not here; set enable_cache_manager = True",
                name="llm_datadist_v1",
            )
        engine = Engine(self._cluster_id, parse(config.options))
        self._engine_options = config.options
        self._enable_cache_mgr = True
        self._cache_manager = CacheManager(engine)
        self._engine = engine
        LLMDataDist.llm_engine_instance = self

    def finalize(self) -> None:
        """Unlink everything, give everything back. Does nothing when not initialised; `init` may follow."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self._cache_manager = None
        if LLMDataDist.llm_engine_instance is self:
            LLMDataDist.llm_engine_instance = None
        engine.close()

    def _live(self, operation: str) -> Engine:
        if self._engine is None:
            raise not_initialised(operation)
        return self._engine

    # ------------------------------------------------------------------ looking

    @property
    def cluster_id(self) -> int:
        """As given."""
        return self._cluster_id

    @property
    def cache_manager(self) -> CacheManager:
        """The cache manager.

        Raises:
            RuntimeError: Not initialised.
        """
        self._live("cache_manager")
        assert self._cache_manager is not None  # noqa: S101 - both are set together
        return self._cache_manager

    @property
    def kv_cache_manager(self) -> Any:
        """The first generation's manager, which is not there.

        Raises:
            LLMException: Always.
        """
        self._live("kv_cache_manager")
        raise invalid("kv_cache_manager is not there with enable_cache_manager; use cache_manager")

    def check_link_status(self, remote_cluster_id: int) -> None:
        """A call of the first generation.

        Raises:
            LLMException: Always.
        """
        self._live("check_link_status")
        raise invalid("check_link_status is not there with enable_cache_manager; link_clusters tells the status")

    # ------------------------------------------------------------------ links by address

    def link_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Link to clusters.

        Args:
            clusters: Where they are.
            timeout: Milliseconds.

        Returns:
            The last failure or success, and what came of each. A link that fails raises nothing.
        """
        engine = self._live("link_clusters")
        self._check_clusters(clusters, timeout)
        for index, info in enumerate(clusters):
            if not self._engine_options.get("llm.LocalCommRes"):
                require(info.local_ip_info_list, f"clusters[{index}] has no local address; call append_local_ip_info")
            check_uint64(f"clusters[{index}].remote_cluster_id", info.remote_cluster_id)
        return engine.link_clusters(clusters, timeout / 1000)

    def unlink_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000, force: bool = False
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Unlink clusters; one that is not linked is none.

        Args:
            clusters: Which, with their address unless `force`.
            timeout: Milliseconds.
            force: Needs no address.

        Returns:
            As for `link_clusters`.
        """
        engine = self._live("unlink_clusters")
        check_isinstance("force", force, bool)
        self._check_clusters(clusters, timeout)
        for index, info in enumerate(clusters):
            check_uint64(f"clusters[{index}].remote_cluster_id", info.remote_cluster_id)
        return engine.unlink_clusters(clusters, bool(force))

    @staticmethod
    def _check_clusters(clusters: Any, timeout: Any) -> None:
        check_int32("timeout", timeout)
        require(timeout > 0, f"timeout must be above 0 milliseconds, not {timeout}")
        check_isinstance("clusters", clusters, (list, tuple), LLMClusterInfo, allow_none=False)

    # ------------------------------------------------------------------ links by rank table

    def link(self, comm_name: str, cluster_rank_info: dict[int, int], rank_table: str) -> int:
        """Begin to link 2 to 4 clusters, each of which calls this with the same arguments.

        Args:
            comm_name: 1 to 127 characters.
            cluster_rank_info: The rank of each cluster id, in rising order.
            rank_table: HCCL's, as JSON.

        Returns:
            The communicator's id, at once; `query_register_mem_status` tells how far it has come.
        """
        engine = self._live("link")
        check_isinstance("comm_name", comm_name, str, allow_none=False)
        require(0 < len(comm_name) < 128, f"comm_name must have 1 to 127 characters, not {len(comm_name)}")
        if cluster_rank_info is None:
            raise of_none("cluster_rank_info is None; it must be a dict of cluster ids to ranks")
        check_dict("cluster_rank_info", cluster_rank_info, int, int)
        count = len(cluster_rank_info)
        require(count <= 4, f"cluster_rank_info has {count} members; 2 to 4 are possible")
        for cluster, rank in cluster_rank_info.items():
            check_uint64("a cluster id of cluster_rank_info", cluster)
            check_uint32("a rank of cluster_rank_info", rank)
        check_isinstance("rank_table", rank_table, str, allow_none=False)
        require(count >= 2, f"cluster_rank_info has {count} members; 2 to 4 are possible")
        ranks = list(cluster_rank_info.values())
        require(
            all(one < other for one, other in itertools.pairwise(ranks)),
            f"the ranks of cluster_rank_info must rise in the order given, not {ranks}",
        )
        number = engine.link(comm_name, cluster_rank_info, rank_table)
        self.cache_manager.set_is_call_linked()
        return number

    def unlink(self, comm_id: int) -> None:
        """End a communicator.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: there is none of that id.
        """
        engine = self._live("unlink")
        engine.unlink(self._comm_id(comm_id))

    def query_register_mem_status(self, comm_id: int) -> RegisterMemStatus:
        """How far a communicator has come.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: there is none of that id.
        """
        engine = self._live("query_register_mem_status")
        return engine.link_status(self._comm_id(comm_id))

    @staticmethod
    def _comm_id(comm_id: Any) -> int:
        check_isinstance("comm_id", comm_id, int, allow_none=False)
        return check_uint64("comm_id", comm_id)

    # ------------------------------------------------------------------ role

    def switch_role(self, role: LLMRole, switch_options: dict[str, str] | None = None) -> None:
        """Take another role: the address to listen on is that of the options, or none.

        Raises:
            LLMException: With `LLM_EXIST_LINK`: there is a link.
            KeyError: The role is None.
        """
        engine = self._live("switch_role")
        check_isinstance("role", role, LLMRole)
        role_name(role)
        check_isinstance("switch_options", switch_options, dict)
        options = switch_options or {}
        listen_options(options)
        check_dict("switch_options", options, str, str)
        engine.switch_role(options.get(LISTEN) or None)
        self._role = role


def _shutdown_handler() -> None:
    """Finalize the live instance when the interpreter exits."""
    instance = LLMDataDist.llm_engine_instance
    if instance is not None:
        try:
            instance.finalize()
        except LLMException as error:
            log.warning("at exit: %s", error)


atexit.register(_shutdown_handler)
