"""The process that runs a local Ray cluster for ``bench.rig.ray``: start it by that, not by hand.

It takes one line of text a command on standard input and gives one line of JSON an answer on standard
output. At the end of its input, or at SIGTERM, it kills every process of its session, itself last:
nothing in a rig is worth an orderly end, and Ray's own takes six seconds.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
import traceback
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
import ray
from ray import serve
from ray.cluster_utils import Cluster

from bench.rig import procs, rayapp
from bench.rig.ports import LOOPBACK
from bench.rig.ray import Plan, RayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import TextIOWrapper

HEALTHY_SECONDS = 60.0
STOPPED_SECONDS = 30.0
POLL_SECONDS = 0.1
OBJECT_STORE_BYTES = 100 * 1024 * 1024
HEAD = 0


class Driver:
    """One RayCluster with as many nodes as the plan has ports, each with a Serve proxy."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cluster = Cluster()
        self.nodes: dict[int, Any] = {}
        self.orphans: dict[int, list[int]] = {}
        self.replicas = plan.nodes
        self.release = 0

    def start(self) -> list[int]:
        """Start nodes and application, wait for every proxy; give the raylets' process ids."""
        for index in range(self.plan.nodes):
            self._add(index)
        ray.init(
            address=self.cluster.address,
            _node_ip_address=LOOPBACK,
            namespace="rig",
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": LOOPBACK, "port": self.plan.http_ports[HEAD]},
        )
        self.scale(self.plan.nodes)
        for index in [HEAD] if self.plan.direct_ingress else self.nodes:
            self._wait_healthy(index)
        return [self._raylet(index) for index in self.nodes]

    def scale(self, replicas: int) -> None:
        """Change the number of replicas; at most one a node, and a node without one drains its proxy."""
        self.replicas = replicas
        self._deploy()

    def redeploy(self, _: int) -> None:
        """Replace each replica by one of a new release."""
        self.release += 1
        self._deploy()

    def _deploy(self) -> None:
        plan = self.plan
        application = rayapp.build(self.replicas, plan.max_ongoing, plan.max_queued, self.release)
        serve.run(application, name="default", route_prefix="/")

    def kill_proxy(self, index: int) -> None:
        """Kill the process of a node's Serve proxy; Ray starts another one by itself."""
        procs.kill([self._proxy(index)])

    def proxy_pid(self, index: int) -> int:
        """The process that listens on the node's HTTP port."""
        return self._proxy(index)

    def kill_raylet(self, index: int) -> None:
        """Kill a node's raylet. Its orphaned proxy says it is healthy and answers 500 for a while."""
        self._refuse_head(index)
        raylet = self._raylet(index)
        self.orphans[index] = procs.descendants(raylet)
        procs.kill([raylet])

    def stop_node(self, index: int) -> None:
        """End all of a node's processes; return once its proxy's port is closed."""
        self._refuse_head(index)
        node = self._node(index)
        family = procs.descendants(self._raylet(index)) + self.orphans.pop(index, [])
        self.cluster.remove_node(node, allow_graceful=False)
        del self.nodes[index]
        procs.kill(family)
        self._wait(
            lambda: procs.listener(self.plan.http_ports[index]) is None,
            STOPPED_SECONDS,
            f"the proxy of node {index} still listens",
        )

    def start_node(self, index: int) -> int:
        """Start a stopped or crashed node again at the same ports; give the raylet's process id."""
        if index in self.orphans:
            self.stop_node(index)
        if index in self.nodes:
            raise RayError(f"node {index} runs already")
        self._add(index)
        self._wait_healthy(index)
        return self._raylet(index)

    def _add(self, index: int) -> None:
        plan = self.plan
        options: dict[str, Any] = {
            "node_ip_address": LOOPBACK,
            "num_cpus": 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            "metrics_export_port": plan.metrics_ports[index],
            "dashboard_agent_listen_port": plan.agent_ports[index],
            "include_log_monitor": False,
            "env_vars": {
                rayapp.NODE_VARIABLE: str(index),
                # A worker's proxy takes its port from here, the head's from the Serve options.
                "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(plan.http_ports[index]),
            },
        }
        if index == HEAD:
            options |= {
                "gcs_server_port": plan.gcs_port,
                "include_dashboard": bool(plan.dashboard_port),
                "dashboard_host": LOOPBACK,
                "dashboard_port": plan.dashboard_port,
            }
        self.nodes[index] = self.cluster.add_node(wait=True, **options)

    def _node(self, index: int) -> Any:  # noqa: ANN401 - a private class of Ray
        if index not in self.nodes:
            raise RayError(f"there is no running node {index}")
        return self.nodes[index]

    def _raylet(self, index: int) -> int:
        raylet: int = self._node(index).all_processes["raylet"][0].process.pid
        return raylet

    def _proxy(self, index: int) -> int:
        self._node(index)
        pid = procs.listener(self.plan.http_ports[index])
        if pid is None:
            raise RayError(f"no proxy listens on node {index}")
        return pid

    def _refuse_head(self, index: int) -> None:
        if index == HEAD:
            raise RayError("node 0 is the head: without it there is no cluster")

    def _wait_healthy(self, index: int) -> None:
        url = f"http://{LOOPBACK}:{self.plan.http_ports[index]}/-/healthz"
        self._wait(lambda: answers_ok(url), HEALTHY_SECONDS, f"the proxy of node {index} is not healthy")

    def _wait(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise RayError(f"{otherwise} after {seconds:g} s")
            time.sleep(POLL_SECONDS)


def answers_ok(url: str) -> bool:
    """Whether the URL answers 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - loopback, built here
            return bool(response.status == HTTPStatus.OK)
    except (urllib.error.URLError, OSError):
        return False


def obey(driver: Driver, line: str) -> dict[str, Any]:
    """Carry out one command: a name and the number of a node, or of replicas."""
    name, _, argument = line.strip().partition(" ")
    commands: dict[str, Callable[[int], int | None]] = {
        "kill-proxy": driver.kill_proxy,
        "proxy-pid": driver.proxy_pid,
        "kill-raylet": driver.kill_raylet,
        "stop-node": driver.stop_node,
        "start-node": driver.start_node,
        "scale": driver.scale,
        "redeploy": driver.redeploy,
    }
    if name not in commands:
        return {"ok": False, "error": f"unknown command {name!r}: there are {', '.join(commands)}"}
    if not argument.isdecimal():
        return {"ok": False, "error": f"{name} needs one number, not {argument!r}"}
    try:
        return {"ok": True, "value": commands[name](int(argument))}
    except RayError as error:
        return {"ok": False, "error": str(error)}


def own_output() -> TextIOWrapper:
    """Take standard output for the answers; what Ray prints there goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def run(answer: Callable[[dict[str, Any]], None]) -> None:
    """Start the cluster and obey until standard input ends."""
    driver = Driver(Plan(**orjson.loads(sys.argv[1])))
    answer({"ok": True, "value": driver.start()})
    for line in sys.stdin:
        if line.strip():
            answer(obey(driver, line))


def main() -> None:
    """Run, and leave nothing behind."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    answers = own_output()

    def answer(content: dict[str, Any]) -> None:
        answers.write(orjson.dumps(content).decode() + "\n")

    try:
        run(answer)
    except RayError as error:
        answer({"ok": False, "error": str(error)})
    except BrokenPipeError:
        pass  # whoever asked is gone
    except Exception as error:  # noqa: BLE001 - told, and logged; the process ends below, whatever it was
        traceback.print_exc()
        answer({"ok": False, "error": f"Ray did not start: {type(error).__name__}: {error}"})
    finally:
        # Only now: until here Ray's workers tell by their parent whether their raylet is alive.
        procs.adopt_orphans()
        procs.kill_session(os.getsid(0), sparing=os.getpid())
        procs.reap()
        if os.getppid() != parent:  # which otherwise reads the log and removes it itself
            shutil.rmtree(Plan(**orjson.loads(sys.argv[1])).directory, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main()
