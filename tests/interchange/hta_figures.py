# SPDX-License-Identifier: Apache-2.0
"""The figures of HolisticTraceAnalysis and of the PyTorch profiler's TensorBoard plug-in for Kineto traces, as JSON.

Runs in .venv-hta (`tools/setup hta`), started by test_hta_equal.py. Times are nanoseconds. Where a tool fails on a
trace, its figure is {"error": ...}. What is changed of the tools, so that only definitions are compared:
- pandas sorts stably: HTA's sorts leave slices of the same microsecond in any order; of operators that begin at
  the same one, the shortest is the deepest;
- HTA keeps nanoseconds (its own option HTA_DISABLE_NS_ROUNDING);
- temporal and kernel breakdown, overlap, sequences: without cuda_sync marks, which HTA counts as work of the device;
- the kernel table: with no kernels put under "others", where HTA takes the statistics of sums;
- the plug-in 0.4.3 of PyPI: with the categories and annotations of its last revision (kineto, April 2026), with
  collectives by their prefixes (it names five), and collective kernels by their names too, as traces of today do
  not link them with the operator.

usage: hta_figures.py TRACE...    a trace a rank
"""

from __future__ import annotations

import functools
import gzip
import json
import logging
import os
import sys
import tempfile
import warnings
from functools import partial
from typing import Any, Callable

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import pandas as pd  # noqa: E402

SORT_VALUES = pd.DataFrame.sort_values


def sort_values(self: pd.DataFrame, by: Any, **options: Any) -> Any:
    if by == "ts" and options.get("ascending") is False:
        # "The deepest operator": of those that begin at the same microsecond the shortest.
        by, options["ascending"] = ["ts", "dur"], [False, True]
    return SORT_VALUES(self, by=by, **{"kind": "stable", **options})


pd.DataFrame.sort_values = sort_values

from hta.trace_analysis import TraceAnalysis  # noqa: E402
from hta.trace_diff import DeviceType, LabeledTrace, TraceDiff  # noqa: E402
from torch_tb_profiler.profiler import event_parser, node, trace  # noqa: E402
from torch_tb_profiler.profiler.data import RunProfileData  # noqa: E402

MANY = 10**9
SEQUENCES_OF = ["aten::linear", "aten::batch_norm", "evaluate_function", "Optimizer", "aten::mse_loss"]


def ns(us: float) -> int:
    return round(float(us) * 1000)


def guarded(figure: Callable[[], Any]) -> Any:
    try:
        return figure()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}


class Hta:
    def __init__(self, files: list[str]) -> None:
        self.analysis = TraceAnalysis(trace_files=dict(enumerate(files)))
        self.traces = self.analysis.t.traces
        self.ranks = sorted(self.traces)

    def without_sync(self, figure: Callable[[], Any]) -> Any:
        sync = self.analysis.t.symbol_table.get_sym_id_map().get("cuda_sync", -1)
        whole = dict(self.traces)
        for rank, df in whole.items():
            self.traces[rank] = df[df["cat"].ne(sync)].copy()
        try:
            return figure()
        finally:
            self.traces.update(whole)

    def temporal(self) -> Any:
        df = self.analysis.get_temporal_breakdown(visualize=False)
        return [
            {
                "rank": int(row["rank"]),
                "span_ns": ns(row["kernel_time(us)"]),
                "idle_ns": ns(row["idle_time(us)"]),
                "compute_ns": ns(row["compute_time(us)"]),
                "non_compute_ns": ns(row["non_compute_time(us)"]),
            }
            for _, row in df.iterrows()
        ]

    def classes(self) -> Any:
        df, _ = self.analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
        return {row["kernel_type"].lower(): ns(row["sum"]) for _, row in df.iterrows()}

    def kernels(self) -> Any:
        _, df = self.analysis.get_gpu_kernel_breakdown(
            visualize=False, include_memory_kernels=True, num_kernels=MANY
        )
        return [
            {
                "rank": int(row["rank"]),
                "name": row["name"],
                "class": row["kernel_type"].lower(),
                "sum_ns": ns(row["sum (us)"]),
                "mean_ns": float(row["mean (us)"]) * 1000,
                "max_ns": ns(row["max (us)"]),
                "min_ns": ns(row["min (us)"]),
                "std_ns": float(row["stddev"]) * 1000,
            }
            for _, row in df.iterrows()
        ]

    def idle(self) -> Any:
        out = []
        for rank in self.ranks:
            df, _ = self.analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
            for _, row in df.iterrows():
                out.append(
                    {
                        "rank": rank,
                        "stream": int(row["stream"]),
                        "cause": row["idle_category"],
                        # The table is rounded to two digits of a microsecond.
                        "sum_ns": ns(row["idle_time"]),
                    }
                )
        return out

    def overlap(self) -> Any:
        df = self.analysis.get_comm_comp_overlap(visualize=False)
        return {
            int(row["rank"]): None if pd.isna(row.iloc[1]) else float(row.iloc[1]) for _, row in df.iterrows()
        }

    def launches(self) -> Any:
        stats = self.analysis.get_cuda_kernel_launch_stats(ranks=self.ranks, visualize=False)
        return {
            rank: sorted(
                [int(r["correlation"]), ns(r["cpu_duration"]), ns(r["gpu_duration"]), ns(r["launch_delay"])]
                for _, r in df.iterrows()
            )
            for rank, df in stats.items()
        }

    def queue(self) -> Any:
        out = []
        for rank in self.ranks:
            df = self.analysis.get_queue_length_summary(ranks=[rank])
            for (_, stream), row in df["queue_length"].iterrows():
                out.append({"rank": rank, "stream": int(stream), **{k: float(v) for k, v in row.items()}})
        return out

    def memory_bandwidth(self) -> Any:
        out = []
        for rank in self.ranks:
            df = self.analysis.get_memory_bw_summary(ranks=[rank])
            for (_, kind), row in df["memory_bw_gbps"].iterrows():
                out.append({"rank": rank, "kind": kind, **{k: float(v) for k, v in row.items()}})
        return out

    def sequences(self) -> Any:
        out = {}
        for name in SEQUENCES_OF:
            with tempfile.TemporaryDirectory() as folder:
                df = self.analysis.get_frequent_cuda_kernel_sequences(
                    operator_name=name, output_dir=folder, rank=self.ranks[0], visualize=False
                )
            if df.empty:
                continue
            out[name] = sorted(
                [
                    row["pattern"],
                    int(row["count"]),
                    ns(row["GPU kernel duration (us)"]),
                    ns(row["CPU op duration (us)"]),
                ]
                for _, row in df.iterrows()
            )
        return out

    def annotations(self) -> Any:
        df = self.analysis.get_gpu_user_annotation_breakdown(
            use_gpu_annotation=False, visualize=False, num_kernels=MANY
        )
        return [
            {"rank": int(row["rank"]), "name": row["name"], "sum_ns": ns(row["sum (us)"])}
            for _, row in df.iterrows()
        ]

    def op_kernels(self) -> Any:
        if len(self.traces[self.ranks[0]]) > 3000:
            return {"error": "quadratic: minutes"}
        from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

        CudaKernelAnalysis.visualize_aten_op_kernels_and_overhead = classmethod(lambda *_: None)
        df = self.analysis.get_aten_op_kernels_and_delay(ranks=[self.ranks[0]])[self.ranks[0]]
        return sorted(
            [
                row["aten_op_name"],
                row["kernel_sequence"].replace(" -> ", "|"),
                int(row["occurrence_count"]),
                float(row["avg_aten_op_launch_delay"]) * 1000,
                float(row["avg_runtime_delay"]) * 1000,
            ]
            for _, row in df.iterrows()
        )

    def stragglers(self) -> Any:
        return [int(rank) for rank in self.analysis.get_potential_stragglers(num_candidates=1)]

    def critical_path(self, annotation: str, instance: int) -> Any:
        graph, ok = self.analysis.critical_path_analysis(
            rank=self.ranks[0], annotation=annotation, instance_id=instance
        )
        df = graph.get_critical_path_breakdown()
        sums = {bound: ns(value) for bound, value in df.groupby("bound_by").duration.sum().items() if bound}
        return {"ok": ok, "path_ns": ns(df.duration.sum()), "bounds": sums}


def hta(files: list[str]) -> dict[str, Any]:
    try:
        tool = Hta(files)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    out: dict[str, Any] = {}
    for name in ("temporal", "classes", "kernels", "overlap", "sequences"):
        out[name] = guarded(partial(tool.without_sync, getattr(tool, name)))
    for name in (
        "idle",
        "launches",
        "queue",
        "memory_bandwidth",
        "annotations",
        "op_kernels",
        "stragglers",
    ):
        out[name] = guarded(getattr(tool, name))
    windows = [("ProfilerStep", 0), ("ProfilerStep", 1)]
    if "mi250" in files[0]:
        windows = [("ProfilerStep", 0)]  # Of two steps one is in scope.
    if "alexnet" in files[0]:
        windows = [("measure|forward", 0), ("measure|forward", 1), ("warmup|forward", 0)]
    out["critical_path"] = [
        {
            "annotation": annotation,
            "instance": instance,
            **guarded(functools.partial(tool.critical_path, annotation, instance)),
        }
        for annotation, instance in windows
    ]
    return out


def diff(control: str, test: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        labeled = []
        for name, path in (("control", control), ("test", test)):
            os.mkdir(os.path.join(folder, name))
            os.symlink(path, os.path.join(folder, name, os.path.basename(path)))
            labeled.append(LabeledTrace(label=name, trace_dir=os.path.join(folder, name)))
        out = {}
        for device in ("ALL", "CPU", "GPU"):
            for short in (False, True):
                df = TraceDiff.compare_traces(*labeled, device_type=DeviceType[device], use_short_name=short)
                out[f"{device.lower()} {'short' if short else 'whole'}"] = {
                    name: [
                        int(row["control_counts"]),
                        int(row["test_counts"]),
                        ns(row["control_total_duration"]),
                        ns(row["test_total_duration"]),
                    ]
                    for name, row in df.iterrows()
                }
        return out


class Collectives:
    def __contains__(self, name: str) -> bool:
        return name.startswith(("nccl:", "gloo:", "c10d::")) or name == "record_param_comms"


def patch_plugin() -> None:
    for module in (event_parser, trace, node):
        module.NcclOpNameSet = Collectives()
    for kind in ("cuda_runtime", "cuda_driver"):
        trace.EventTypeMap[kind] = trace.EventTypes.RUNTIME
    del trace.EventTypeMap["gpu_user_annotation"]  # Not of the host.
    create = trace.create_trace_event

    def create_event(event: dict[str, Any], lightning: bool) -> Any:
        kind = trace.EventTypeMap.get(str(event.get("cat")).lower())
        name = event.get("name") or ""
        if kind == trace.EventTypes.USER_ANNOTATION and not name.startswith("ProfilerStep#"):
            return trace.OperatorEvent(kind, event)
        return create(event, lightning)

    trace.create_trace_event = create_event
    parse = event_parser.StepParser._parse_step

    def parse_step(self: Any, event: Any, comm_nodes: dict[int, Any]) -> None:
        name = event.name or ""
        if event.type == trace.EventTypes.KERNEL and name.startswith("nccl") and "Kernel" in name:
            comm_nodes = {event.external_id: None}
        elif event.type == trace.EventTypes.KERNEL and event.external_id not in comm_nodes:
            comm_nodes = {}
        parse(self, event, comm_nodes)

    event_parser.StepParser._parse_step = parse_step


def plugin(path: str) -> dict[str, Any]:
    with gzip.open(path) as file:
        content = json.load(file)
    profile = RunProfileData.from_json("worker", "span", content)
    roles = [
        "kernel",
        "memcpy",
        "memset",
        "communication",
        "runtime",
        "data_loader",
        "cpu_exec",
        "other",
        "wall",
    ]
    metrics = profile.gpu_metrics_parser
    return {
        "mean": dict(zip(roles, (float(cost) * 1000 for cost in profile.avg_costs.costs))),
        "steps": [dict(zip(roles, (ns(cost) for cost in step.costs))) for step in profile.steps_costs],
        "gpus": {
            gpu: {
                "utilisation_share": metrics.gpu_utilization[gpu],
                "sm_efficiency_share": metrics.avg_approximated_sm_efficiency_per_device[gpu],
                "occupancy_share": (
                    None
                    if metrics.avg_occupancy_per_device[gpu] is None
                    else metrics.avg_occupancy_per_device[gpu] / 100
                ),
            }
            for gpu in sorted(metrics.gpu_ids)
        },
        "tensor_core_share": profile.tc_used_ratio,
        "eligible_share": profile.tc_eligible_ops_kernel_ratio,
    }


def main() -> None:
    files = sys.argv[1:]
    if files[0] == "diff":
        figures: dict[str, Any] = {"diff": guarded(lambda: diff(files[1], files[2]))}
    else:
        figures = {"hta": hta(files)}
        patch_plugin()
        figures["plugin"] = [guarded(functools.partial(plugin, path)) for path in files]
    # HTA prints of its own.
    with open(os.environ["FIGURES"], "w") as out:
        json.dump(figures, out)


main()
