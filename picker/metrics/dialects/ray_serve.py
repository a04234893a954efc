"""The page of a Ray node, read for the Serve proxy that runs on it.

One page shows all processes of a node. A request that came in by the proxy is counted by the proxy's
*handles*: ``num_ongoing_requests_at_replicas`` has been given to a replica (on any node of the
cluster), ``deployment_queued_queries`` waits in the proxy. Both are rewritten every 0.1 s as long as the
process lives, whereas ``num_ongoing_http_requests`` is written only when a request starts or ends and
vanishes from the page while long requests still run, so it is not used.

Replicas that call other deployments have handles, too. Whose a handle is:

* From about Ray 2.50 on, the histogram ``event_loop_scheduling_latency_ms`` carries
  ``component="proxy"`` and the proxy's ``actor_id``, always. (The router's gauges with
  ``handle_source="PROXY"`` say the same, but expire where nothing changes; they are the second choice.)
* Before (seen: 2.46) neither exists. There a handle is the proxy's if its process (``WorkerId``) runs no
  replica, that is, exports no ``replica_processing_queries``.

A page of a node without a proxy, or of a proxy that has no handle yet, does not say its load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from picker.metrics.dialects.dialect import Dialect
from picker.metrics.pages import Families, mean, samples, total
from picker.metrics.reading import ProbeReading, Reading, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from picker.metrics.pages import Sample

_EVENT_LOOP = b"ray_serve_event_loop_scheduling_latency_ms_count"
_ROUTER_TASKS = b"ray_serve_num_scheduling_tasks"
_AT_REPLICAS = b"ray_serve_num_ongoing_requests_at_replicas"
_QUEUED = b"ray_serve_deployment_queued_queries"
_AT_LOCAL_REPLICAS = b"ray_serve_replica_processing_queries"
_HTTP_REQUESTS = b"ray_serve_num_http_requests"
_MODELS = b"ray_serve_registered_multiplexed_model_id"
_KV_USAGE = b"ray_vllm_kv_cache_usage_perc"

_MAX_MODELS = 256
_MAX_COUNTERS = 256
_MAX_ROUTES = 1000
ROUTES_PATH = "/-/routes"
HEALTH_PATH = "/-/healthz"
# Texts of the proxy's 503 (ray/serve/_private/proxy.py and proxy_router.py).
_DRAINING_TEXT = b"being drained"
_UNREADY_TEXTS = (b"Route table is not populated", b"No replicas are available")


def matches(page: bytes) -> bool:
    """Whether a Ray node wrote the page, be it that Serve has not started there yet."""
    return b"\nray_" in page or page.startswith(b"ray_")


def read(page: bytes) -> Reading:
    """What the page says about the node's proxy."""
    families = Families(page, b"ray_serve_")
    loops = list(families.samples(_EVENT_LOOP))
    local = list(families.samples(_AT_LOCAL_REPLICAS))
    placed = list(families.samples(_AT_REPLICAS))
    queued = list(families.samples(_QUEUED))
    proxy_loops = [sample for sample in loops if sample.label(b"component") == "proxy"]
    proxies = _proxy_actors(families, proxy_loops)
    if proxies or loops:
        placed = [sample for sample in placed if sample.label(b"actor_id") in proxies]
        queued = [sample for sample in queued if sample.label(b"actor_id") in proxies]
    else:
        replicas = {sample.label(b"WorkerId") for sample in local}
        placed = [sample for sample in placed if sample.label(b"WorkerId") not in replicas]
        queued = [sample for sample in queued if sample.label(b"WorkerId") not in replicas]
    running = total(placed)
    queue = total(queued)
    # Each process of the node exports when its own time has come, so only the proxy's series tell when the
    # proxy's were renewed. The probes of the scrape loop are counted as requests, too: even the page of an
    # idle proxy changes with every export.
    requests = _counter(families, _HTTP_REQUESTS)
    changing = (*proxy_loops[:_MAX_COUNTERS], *placed[:_MAX_COUNTERS], *queued[:_MAX_COUNTERS], *requests)
    return Reading(
        load=running + queue,
        queue=queue,
        running=running,
        kv_usage=mean(samples(page, _KV_USAGE)),
        local_running=total(local),
        proxy=True,
        models=_loaded_models(families),
        marker=fingerprint(sample.value for sample in changing),
        engine="" if loops and not proxies else _engine((*loops[:1], *placed[:1]), proxies),
    )


def read_probe(path: str, status: int, body: bytes) -> ProbeReading:
    """What ``/-/routes`` or ``/-/healthz`` says; both answer by the same rule, the former says more.

    A proxy that is drained keeps its routes: requests to it still succeed. Where the proxy has no
    route table or no replica, or the last application was deleted, it can serve no path now. Any other
    answer than Ray's own says nothing.
    """
    if status == 503:  # noqa: PLR2004 - Service Unavailable
        if _DRAINING_TEXT in body:
            return ProbeReading(draining=True)
        if any(text in body for text in _UNREADY_TEXTS):
            return ProbeReading(draining=False, routes=())
    if status == 200:  # noqa: PLR2004 - OK
        if path == HEALTH_PATH:
            return ProbeReading(draining=False)
        routes = _routes(body)
        if routes is not None:
            return ProbeReading(draining=False, routes=routes)
    return ProbeReading()


def _proxy_actors(families: Families, proxy_loops: Iterable[Sample]) -> frozenset[str]:
    found = {sample.label(b"actor_id") for sample in proxy_loops}
    if not found:
        found = {
            sample.label(b"actor_id")
            for sample in families.samples(_ROUTER_TASKS)
            if sample.label(b"handle_source") == "PROXY"
        }
    return frozenset(actor for actor in found if actor)


def _counter(families: Families, name: bytes) -> list[Sample]:
    """A counter's samples: 2.60 calls it ``x_total``, 2.46 has that and ``x``, some between only ``x``."""
    totals = list(families.samples(name + b"_total", _MAX_COUNTERS))
    return totals or list(families.samples(name, _MAX_COUNTERS))


def _loaded_models(families: Families) -> frozenset[str]:
    """Multiplexed models (of Serve LLM: LoRA adapters) in the replicas here; 0 marks an unloaded one."""
    loaded: set[str] = set()
    for sample in families.samples(_MODELS):
        if sample.value > 0 and (model := sample.label(b"model_id")):
            loaded.add(model)
            if len(loaded) == _MAX_MODELS:
                break
    return frozenset(loaded)


def _engine(series: Iterable[Sample], proxies: frozenset[str]) -> str:
    """The cluster's session and the proxy's actor (where it is known): a restart changes one of them."""
    session = next((name for sample in series if (name := sample.label(b"SessionName"))), "")
    return "/".join([session, *sorted(proxies)[:4]])


def _routes(body: bytes) -> tuple[str, ...] | None:
    """The route prefixes of ``{prefix: application}``, or None if the body is something else."""
    try:
        table = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(table, dict):
        return None
    return tuple(prefix for prefix in table if prefix.startswith("/"))[:_MAX_ROUTES]


RAY_SERVE = Dialect(
    name="ray_serve",
    interval=1.0,
    min_interval=1.0,  # the page costs the node 20-40 ms of one process, and Ray exports no faster
    max_lag=10.0,  # RAY_metrics_report_interval_ms, by default
    matches=matches,
    read=read,
    probes=(ROUTES_PATH, HEALTH_PATH),
    read_probe=read_probe,
)
