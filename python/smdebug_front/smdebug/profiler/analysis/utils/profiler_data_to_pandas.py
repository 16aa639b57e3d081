# SPDX-License-Identifier: Apache-2.0
"""System metrics and framework events of a run as pandas frames, with the columns that notebooks for SageMaker
Debugger use.
"""

import os

import pandas as pd

from ...._telltale import package
from ...._telltale.recorder import pointers
from ....core.utils import match_inc
from ....exceptions import SMDebugNotImplementedError

_SYSTEM = ["timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type"]
_FRAMEWORK = [
    *("start_time", "end_time", "start_time_us", "end_time_us", "tid", "pid", "framework_metric", "step"),
    *("bytes", "process", "nodeID"),
]
_DATALOADER = [
    *("start_time", "end_time", "start_time_us", "end_time_us", "duration_us", "pid", "framework_metric"),
    *("step", "worker_id", "num_workers", "pin_memory", "process", "node_id"),
]
_TIME = "%Y-%m-%dT%H:%M:%S:%f"
# Telltale's metric -> (system_metric, dimension, type); of the subjects of a node the values are added up.
_SUMS = {
    "disk.read_bytes_rate": ("ReadThroughputInBytesPerSecond", "", "i/o"),
    "disk.write_bytes_rate": ("WriteThroughputInBytesPerSecond", "", "i/o"),
    "disk.read_ops_rate": ("IOPS", "", "i/o"),
    "disk.write_ops_rate": ("IOPS", "", "i/o"),
    "net.recv_bytes_rate": ("ReceiveBytesPerSecond", "Algorithm", "network"),
    "net.send_bytes_rate": ("TransmitBytesPerSecond", "Algorithm", "network"),
}
_CORES = {"cpu.busy": "CPUUtilization", "cpu.iowait": "I/OWaitPercentage"}


def run_directory(path):
    """The run directory that a path means, itself or by a hook's pointer; None: none."""
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(os.path.join(path, "run.json")):
        return path
    found = pointers(path)
    return found[0]["run"] if found else None


def _texts(microseconds):
    return pd.to_datetime(microseconds, unit="us", utc=True).dt.strftime(_TIME)


class PandasFrame:
    """path: of a run directory, being recorded or ended, or of a hook's out_dir. Each call reads what is there
    then. Times *_us are microseconds since the first system metric; `timestamp`, `start_time` and `end_time` are
    UTC texts. Percent and bytes as SageMaker has them.

    Raises:
        SMDebugNotImplementedError: the path is none of them.
    """

    def __init__(self, path, use_in_memory_cache=False, scan_interval=5000000000):
        run = None if path is None or str(path).startswith("s3://") else run_directory(os.fspath(path))
        if run is None:
            raise SMDebugNotImplementedError(f"PandasFrame({path!r}): pass the path of a run directory")
        self.path = run
        self._run = package.telltale().open(run)
        self._start_us = None

    @property
    def start_time(self):
        """Of the first system metric, microseconds since 1970; 0 before there is one."""
        if self._start_us is None:
            times = self._run.table("metrics", ["time_ns"])["time_ns"]
            if len(times) == 0:
                return 0
            self._start_us = min(times.to_pylist()) // 1000
        return self._start_us

    def state(self):
        """running, finished, failed, killed or lost."""
        return self._run.state

    def is_running(self):
        return self.state() == "running"

    # -- system metrics --

    def get_all_system_metrics(self, selected_system_metrics=()):
        """All system metrics, or those of these names (cpu0, MemoryUsedPercent, IOPS, ...), by time."""
        names = [*_CORES, *_SUMS, "mem.used", "mem.total"]
        quoted = ", ".join(f"'{name}'" for name in names)
        columns = ["time_ns", "node", "subject", "name", "value"]
        rows = self._run.pandas("metrics", columns, f"name in ({quoted})")
        frame = pd.concat([_cores(rows), _memory(rows), _sums(rows)], ignore_index=True)
        frame["timestamp_us"] = frame["time_ns"] // 1000
        frame["timestamp"] = _texts(frame["timestamp_us"])
        frame["timestamp_us"] -= self.start_time
        frame = frame.rename(columns={"node": "nodeID"}).sort_values("time_ns", kind="stable")[_SYSTEM]
        if len(selected_system_metrics):
            frame = frame[frame["system_metric"].isin(list(selected_system_metrics))]
        return frame.reset_index(drop=True)

    # -- framework events --

    def get_all_framework_metrics(self, selected_framework_metrics=()):
        """All steps and spans, or those of these names or processes, by time of their begin. A step is called
        Step:ModeKeys.<MODE>, a span as Telltale calls it.
        """
        steps = self._run.pandas("steps", ["time_ns", "duration_ns", "step", "mode", "rank", "pid"])
        steps["framework_metric"] = "Step:ModeKeys." + steps["mode"].astype(str)
        steps["process"] = steps["framework_metric"]
        steps["tid"] = steps["pid"]
        spans = self._run.pandas(
            "spans", ["time_ns", "duration_ns", "name", "category", "step", "rank", "pid", "tid"]
        ).rename(columns={"name": "framework_metric", "category": "process"})
        frame = pd.concat([steps, spans], ignore_index=True)
        host = self._run.info.get("host") or "algo-1"
        frame["nodeID"] = frame["rank"].astype(str) + f"-{host}"
        frame["bytes"] = -1
        frame["start_time_us"] = frame["time_ns"] // 1000
        frame["end_time_us"] = (frame["time_ns"] + frame["duration_ns"]) // 1000
        frame["start_time"] = _texts(frame["start_time_us"])
        frame["end_time"] = _texts(frame["end_time_us"])
        frame[["start_time_us", "end_time_us"]] -= self.start_time
        frame = frame.sort_values("time_ns", kind="stable")[_FRAMEWORK]
        if len(selected_framework_metrics):
            wanted = list(selected_framework_metrics)
            frame = frame[frame["framework_metric"].isin(wanted) | frame["process"].isin(wanted)]
        return frame.reset_index(drop=True)

    def get_latest_data(self):
        """(system metrics, framework metrics), all that there is now."""
        return self.get_all_system_metrics(), self.get_all_framework_metrics()

    def get_profiler_data_by_time(
        self,
        start_time_us,
        end_time_us,
        cache_metrics=False,
        selected_framework_metrics=(),
        selected_system_metrics=(),
        get_framework_metrics=True,
        get_system_metrics=True,
    ):
        """(system metrics, framework metrics) between two times, microseconds since 1970; empty frames of what is
        not asked for.
        """
        begin, end = start_time_us - self.start_time, end_time_us - self.start_time
        system, framework = pd.DataFrame(columns=_SYSTEM), pd.DataFrame(columns=_FRAMEWORK)
        if get_system_metrics:
            system = self.get_all_system_metrics(selected_system_metrics)
            system = system[system["timestamp_us"].between(begin, end)].reset_index(drop=True)
        if get_framework_metrics:
            framework = self.get_all_framework_metrics(selected_framework_metrics)
            inside = (framework["end_time_us"] >= begin) & (framework["start_time_us"] <= end)
            framework = framework[inside].reset_index(drop=True)
        return system, framework

    def get_profiler_data_by_step(self, start_step, end_step, cache_metrics=False):
        """(system metrics, framework metrics) of the steps from `start_step` to `end_step`, both included."""
        framework = self.get_all_framework_metrics()
        framework = framework[framework["step"].between(start_step, end_step)]
        system = self.get_all_system_metrics()
        inside = system["timestamp_us"].between(
            framework["start_time_us"].min(), framework["end_time_us"].max()
        )
        return system[inside].reset_index(drop=True), framework.reset_index(drop=True)

    def get_all_dataloader_metrics(self, selected_framework_metrics=()):
        """Spans of data loading, or those in whose name or category one of the patterns is found."""
        frame = self.get_all_framework_metrics()
        patterns = list(selected_framework_metrics)
        if patterns:
            mask = [
                match_inc(name, patterns) or match_inc(process, patterns)
                for name, process in zip(frame["framework_metric"], frame["process"])
            ]
        else:
            mask = (frame["process"] == "data").tolist()
        frame = frame[pd.Series(mask, index=frame.index, dtype=bool)].copy()
        frame["duration_us"] = frame["end_time_us"] - frame["start_time_us"]
        frame["node_id"] = frame["nodeID"]
        frame["worker_id"] = frame["num_workers"] = -1
        frame["pin_memory"] = "NA"
        return frame[_DATALOADER].reset_index(drop=True)

    # -- what overlaps --

    def convert_datetime_to_timestamp(self, timestamp):
        """Microseconds since 1970 of a text as in the column `timestamp`."""
        return int(pd.to_datetime(timestamp, format=_TIME, utc=True).timestamp() * 1e6)

    def get_framework_metrics_by_timesteps(self, timestep_list=(), selected_framework_metrics=()):
        """Of the times given (texts): ({event: time relative to the longest}, {event: microseconds}, {step of a
        mode: microseconds}) of what was going on then.
        """
        times = [self.convert_datetime_to_timestamp(t) - self.start_time for t in timestep_list]
        frame = self.get_all_framework_metrics(selected_framework_metrics)
        events, detailed, phases = {}, {}, {}
        for time in times:
            hit = frame[(frame["start_time_us"] < time) & (frame["end_time_us"] > time)]
            for process, name, start, end in hit[
                ["process", "framework_metric", "start_time_us", "end_time_us"]
            ].itertuples(index=False):
                to = phases if "Step" in process else events
                to[process] = to.get(process, 0) + end - start
                if "Step" not in name:
                    detailed[name] = detailed.get(name, 0) + end - start
        return _relative(events), detailed, phases

    def get_framework_metrics_by_begin_and_end_timesteps(
        self, begin_timestep_list, end_timestep_list, selected_framework_metrics=()
    ):
        """Of the intervals given (texts): ({category: time relative to the longest}, {event: the same}) of what
        overlaps them, steps apart.
        """
        frame = self.get_all_framework_metrics(selected_framework_metrics)
        frame = frame[~frame["framework_metric"].str.contains("Step")]
        events, detailed = {}, {}
        for begin, end in zip(begin_timestep_list, end_timestep_list):
            begin = self.convert_datetime_to_timestamp(begin) - self.start_time
            end = self.convert_datetime_to_timestamp(end) - self.start_time
            hit = frame[(frame["end_time_us"] >= begin) & (frame["start_time_us"] <= end)]
            lengths = hit["end_time_us"] - hit["start_time_us"]
            for process, name, length in zip(hit["process"], hit["framework_metric"], lengths):
                events[process] = events.get(process, 0) + length
                detailed[name] = detailed.get(name, 0) + length
        return _relative(events), _relative(detailed)


def _relative(times):
    longest = float(max(times.values(), default=0))
    return {name: time / longest for name, time in times.items()} if longest else times


def _cores(rows):
    rows = rows[rows["name"].isin(list(_CORES)) & rows["subject"].str.startswith("cpu:")]
    return pd.DataFrame(
        {
            "time_ns": rows["time_ns"],
            "node": rows["node"],
            "value": rows["value"],
            "system_metric": rows["subject"].str.replace("cpu:", "cpu", regex=False),
            "dimension": rows["name"].map(_CORES),
            "type": "cpu",
        }
    )


def _memory(rows):
    keys = ["time_ns", "node"]
    used = rows[rows["name"] == "mem.used"][[*keys, "value"]]
    total = rows[rows["name"] == "mem.total"][[*keys, "value"]]
    both = used.merge(total, on=keys, suffixes=("", "_total"))
    both["value"] = 100.0 * both["value"] / both.pop("value_total")
    return both.assign(system_metric="MemoryUsedPercent", dimension="", type="memory")


def _sums(rows):
    rows = rows[rows["name"].isin(list(_SUMS))].copy()
    for place, column in enumerate(("system_metric", "dimension", "type")):
        rows[column] = rows["name"].map(lambda name, place=place: _SUMS[name][place])
    keys = ["time_ns", "node", "system_metric", "dimension", "type"]
    return rows.groupby(keys, as_index=False, sort=False)["value"].sum()
