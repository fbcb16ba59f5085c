"""What is on the board: questions of an operator, and the panels that answer them.

The label `instance` is Prometheus' own: the host and port that it asked. What Tessera calls an
instance is `exported_instance`, as Prometheus renames labels that it has itself.
"""

from board_layout import Panel, Query, Row

# What is chosen at the top of the board.
HOST = 'instance=~"$host"'
MODEL = f'{HOST}, model=~"$task"'
TASK = f'{HOST}, task=~"$task"'
UNIT = f'{HOST}, unit=~"$unit"'
# The server itself goes by `server` where processes of units go by their unit.
PROCESS = f'{HOST}, unit=~"$unit|server"'


def rate(metric: str, chosen: str) -> str:
    return f"rate({metric}{{{chosen}}}[$__rate_interval])"


def quantile(share: float, metric: str, chosen: str, label: str) -> str:
    buckets = rate(f"{metric}_bucket", chosen)
    return f"histogram_quantile({share}, sum by ({label}, le) ({buckets}))"


def mean(metric: str, chosen: str, label: str) -> str:
    total, count = rate(f"{metric}_sum", chosen), rate(f"{metric}_count", chosen)
    return f"sum by ({label}) ({total}) / sum by ({label}) ({count})"


ANSWERS = rate("nv_inference_request_success", MODEL)
# Those whose client went away are nobody's loss.
UNANSWERED = rate("nv_inference_request_failure", f'{MODEL}, reason!="CANCELED"')
REFUSED = rate("nv_inference_request_failure", f'{MODEL}, reason="REJECTED"')
ROWS_BY_TASK = (
    f'label_replace({rate("nv_inference_count", MODEL)}, "task", "$1", "model", "(.*)")'
)


def part_of_requests(metric: str) -> str:
    """Microseconds of an answered request, in the mean over all tasks that are chosen."""
    return f"sum({rate(metric, MODEL)}) / sum({ANSWERS})"


WELL = Row("Is all well?", [
    Panel(
        "Hosts", "none",
        "Servers and nodes that tell metrics. Fewer than there should be: look for the alert "
        "TesseraServerGone, then at the log of the host that is missing.",
        [Query(f"count(tessera_queue_length{{{HOST}}})")],
        kind="stat", width=3, height=4,
    ),
    Panel(
        "Tasks not ready", "none",
        "Tasks that do not answer now. Any: GET /v1/tasks on the control plane says why. It is a "
        "unit that is being started, has failed, or was stopped by hand.",
        [Query(f"count(tessera_task_ready{{{TASK}}} == 0) or vector(0)")],
        kind="stat", width=3, height=4, red=1,
    ),
    Panel(
        "Instances not up", "none",
        "Instances of units that take no requests. For more than some seconds: the log says at "
        "`warn` why each went; GET /v1/units has the reason, too.",
        [Query(f"count(tessera_unit_up{{{UNIT}}} == 0) or vector(0)")],
        kind="stat", width=3, height=4, red=1,
    ),
    Panel(
        "Answers per second", "reqps",
        "Requests that were answered, degraded ones among them. None while clients ask: look at "
        "the panel of those that were not answered.",
        [Query(f"sum({ANSWERS})")],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Not answered", "percentunit",
        "Share of requests that got no answer, without those whose client went away. Above 1%: "
        "the panel by reason, below, says whether they were refused or failed.",
        [Query(f"sum({UNANSWERED}) / clamp_min(sum({UNANSWERED}) + sum({ANSWERS}), 0.001)")],
        kind="stat", width=4, height=4, orange=0.01, red=0.05,
    ),
    Panel(
        "Slowest hundredth", "s",
        "99 of 100 answers of all chosen tasks took less. Look at the panel by task, then at "
        "where the time goes.",
        [Query(
            "histogram_quantile(0.99, sum by (le) "
            f"({rate('tessera_request_duration_seconds_bucket', TASK)}))"
        )],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Restarts in an hour", "none",
        "Instances that were started again. One is answered for by others or waited for; many "
        "of one unit: see the alert TesseraUnitRestarts.",
        [Query(f"round(sum(increase(tessera_unit_restarts_total{{{UNIT}}}[1h])))")],
        kind="stat", width=3, height=4, orange=1, red=5,
    ),
    Panel(
        "Answers per second, by task", "reqps",
        "A task that falls while others do not: its clients stopped, or its unit is away. All "
        "fall at once: the host, or what is in front of it.",
        [Query(f"sum by (model) ({ANSWERS})", "{{model}}")],
        stacked=True,
    ),
    Panel(
        "Latency, by task", "s",
        "From acceptance to answer: the median, and what 99 of 100 stay below. Only p99 grows: "
        "bursts, restarts or weights that are loaded. Both grow: too much load, or too few cores; "
        "where the time goes tells which.",
        [
            Query(quantile(0.5, "tessera_request_duration_seconds", TASK, "task"), "{{task}} p50"),
            Query(quantile(0.99, "tessera_request_duration_seconds", TASK, "task"), "{{task}} p99"),
        ],
    ),
    Panel(
        "Not answered per second, by reason", "reqps",
        "REJECTED: refused, as it could not be finished in time; send less, give longer deadlines "
        "or more cores. OTHER: mostly deadlines that passed on the way. BACKEND: a unit failed, "
        "was lost or is away; the log has the error. CANCELED: the client went away.",
        [Query(
            f"sum by (reason) ({rate('nv_inference_request_failure', MODEL)})", "{{reason}}"
        )],
        stacked=True,
    ),
    Panel(
        "Refused, by task", "percentunit",
        "Share of a task's requests that were refused at once. One task: its deadline is shorter "
        "than its queue. All: the host is asked for more than it can do.",
        [Query(
            f"sum by (model) ({REFUSED}) / clamp_min("
            f"sum by (model) ({UNANSWERED}) + sum by (model) ({ANSWERS}), 0.001)",
            "{{model}}",
        )],
        most=1,
    ),
    Panel(
        "Where the time of a request goes", "µs",
        "Means over the chosen tasks. Waiting grows first when there is too much to do; computing "
        "grows when cores are shared with others; the rest should stay far below a millisecond.",
        [
            Query(part_of_requests("nv_inference_queue_duration_us"), "waiting"),
            Query(part_of_requests("nv_inference_compute_infer_duration_us"), "computing"),
            Query(part_of_requests("nv_inference_compute_output_duration_us"), "the rest"),
        ],
        stacked=True,
    ),
    Panel(
        "Degraded and sent again", "reqps",
        "Degraded: an exit answered that was not certain enough, as the rest failed or the "
        "deadline was near. Sent again: an instance was lost with the request. Either should be "
        "none; look at restarts, and in a cluster at `tessera plan --cluster`.",
        [
            Query(f"sum by (task) ({rate('tessera_degraded_total', TASK)})", "{{task}} degraded"),
            Query(
                f"sum by (task) ({rate('tessera_requests_retried_total', TASK)})",
                "{{task}} sent again",
            ),
        ],
    ),
])

SHARED = Row("What is shared?", [
    Panel(
        "Tasks", "none",
        "Tasks there are. GET /v1/tasks lists them with their paths.",
        [Query(f"count(count by (task) (tessera_task_ready{{{TASK}}}))")],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Units that run", "none",
        "The more that tasks have in common, the fewer there are.",
        [Query(f"count(count by (unit) (tessera_unit_up{{{UNIT}}}))")],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Instances", "none",
        "Units that run, replicas counted, by what keeps them apart: threads of the server or "
        "processes of their own.",
        [Query(f"count by (isolation) (tessera_unit_up{{{UNIT}}})", "{{isolation}}")],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Runs for each answer", "none",
        "Units that a request passes, in the mean over the chosen hosts. It falls where requests "
        "leave at exits.",
        [Query(
            f"sum({rate('tessera_unit_computing_seconds_count', HOST)})"
            f" / sum({rate('nv_inference_request_success', HOST)})"
        )],
        kind="stat", width=4, height=4,
    ),
    Panel(
        "Units", "none",
        "What each unit does. One that has more requests than any single task is shared: metrics "
        "do not say by whom, GET /v1/units does (`tasks`). A unit of several tasks that has no "
        "instance up takes all of them along.",
        [
            Query(f"sum by (unit) (tessera_unit_up{{{UNIT}}})"),
            Query(f"sum by (unit) ({rate('tessera_unit_computing_seconds_count', UNIT)})"),
            Query(mean("tessera_unit_waiting_seconds", UNIT, "unit")),
            Query(mean("tessera_unit_computing_seconds", UNIT, "unit")),
            Query(f"sum by (unit) (tessera_unit_restarts_total{{{UNIT}}})"),
        ],
        kind="table", width=16, height=9,
        columns=[
            ("instances up", "none"), ("requests per second", "reqps"), ("waiting", "s"),
            ("computing", "s"), ("restarts", "none"),
        ],
    ),
    Panel(
        "Requests per second, by unit", "reqps",
        "Compare with answers by task: where several tasks share a unit, it has the sum of them. "
        "A unit after an exit has fewer.",
        [Query(
            f"sum by (unit) ({rate('tessera_unit_computing_seconds_count', UNIT)})", "{{unit}}"
        )],
        width=8, height=9,
    ),
])

QUEUES = Row("Queues and batches", [
    Panel(
        "Requests that wait at the dispatcher", "none",
        "All waiting is here. Always above zero: the host is at its limit, and refuses next. Add "
        "cores, replicas or hosts, or batch.",
        [Query(f"sum by (instance) (tessera_queue_length{{{HOST}}})", "{{instance}}")],
    ),
    Panel(
        "Requests under way, by task", "none",
        "Waiting or on their way. Above zero without answers: see the alert TesseraStuck.",
        [Query(
            f"sum by (model) (nv_inference_pending_request_count{{{MODEL}}})", "{{model}}"
        )],
    ),
    Panel(
        "Requests at units", "none",
        "On their way to an instance or through it. The unit that is full while others are empty "
        "is the bottleneck: give its task replicas, or a device.",
        [Query(f"sum by (unit) (tessera_unit_in_flight{{{UNIT}}})", "{{unit}}")],
    ),
    Panel(
        "Waiting before a unit, p99", "s",
        "On the way, in the inbox, and for cores. Much for one unit: it is asked for more than its "
        "cores can do; its tasks' `weight` says who comes first.",
        [Query(quantile(0.99, "tessera_unit_waiting_seconds", UNIT, "unit"), "{{unit}}")],
    ),
    Panel(
        "Computing in a unit, p99", "s",
        "One run, whatever is in its batch. It grows without a change: other processes take "
        "cores, a GPU is throttled, or requests have grown.",
        [Query(quantile(0.99, "tessera_unit_computing_seconds", UNIT, "unit"), "{{unit}}")],
    ),
    Panel(
        "The rest in a unit, p99", "s",
        "Putting batches together, exits, forwarding. It should stay below a millisecond; "
        "otherwise the host is short of cores or swaps.",
        [Query(quantile(0.99, "tessera_unit_overhead_seconds", UNIT, "unit"), "{{unit}}")],
    ),
    Panel(
        "Rows of a run, mean", "none",
        "How large batches are. 1 under load: the unit is not batched, as rows are not proved to "
        "be independent or it does not pay; `tessera inspect` says which.",
        [Query(mean("tessera_unit_batch_rows", UNIT, "unit"), "{{unit}}")],
        width=12,
    ),
    Panel(
        "Rows of a first run, by task", "none",
        "Rows that were answered over runs of the task's first unit.",
        [Query(
            f"sum by (model) ({rate('nv_inference_count', MODEL)})"
            f" / sum by (model) ({rate('nv_inference_exec_count', MODEL)})",
            "{{model}}",
        )],
        width=12,
    ),
])

EXITS = Row("Exits", [
    Panel(
        "Rows that leave at exits, per second", "cps",
        "None where some were: the threshold was changed, or inputs are unlike those that it was "
        "chosen for.",
        [Query(
            f"sum by (task, exit) ({rate('tessera_exits_taken_total', TASK)})", "{{task}} {{exit}}"
        )],
        stacked=True, width=12,
    ),
    Panel(
        "Share of rows that leave", "percentunit",
        "A share that drifts says that inputs change. PUT /v1/tasks/TASK/exits/EXIT sets another "
        "threshold; check accuracy before.",
        [Query(
            f"sum by (task, exit) ({rate('tessera_exits_taken_total', TASK)})"
            f" / on (task) group_left sum by (task) ({ROWS_BY_TASK})",
            "{{task}} {{exit}}",
        )],
        width=12, most=1,
    ),
])

PROCESSES = Row("Processes and memory", [
    Panel(
        "Memory that nobody else holds, by unit", "decbytes",
        "The server and the processes of units; units on threads are in the server's. It grows "
        "without end: note what was served and report it; a restart gives it back.",
        [Query(
            "sum by (instance, unit) "
            f"(tessera_process_resident_private_bytes{{{PROCESS}}})",
            "{{instance}} {{unit}}",
        )],
        stacked=True,
    ),
    Panel(
        "Memory that others may hold too", "decbytes",
        "Weights, libraries and buffers that processes share: the most that one process maps of "
        "it, as a sum would count it many times.",
        [Query(
            f"max by (instance) (tessera_process_resident_shared_bytes{{{PROCESS}}})",
            "{{instance}}",
        )],
    ),
    Panel(
        "Resident memory, by process", "decbytes",
        "Both together, as `top` shows it. A host that comes near its memory ends processes: "
        "bound weights with --host-memory, or serve fewer tasks.",
        [Query(
            f"tessera_process_resident_bytes{{{PROCESS}}}",
            "{{instance}} {{exported_instance}}",
        )],
    ),
    Panel(
        "Cores that are busy", "none",
        "By process, over the last second. All cores of the host: it is at its limit. Few, while "
        "requests wait: --cores, the container's limit, or a GPU that is waited for.",
        [Query(
            f"sum by (instance, unit) (tessera_process_cpu_ratio{{{PROCESS}}})",
            "{{instance}} {{unit}}",
        )],
        stacked=True,
    ),
    Panel(
        "Processor time, by host", "none",
        "Seconds of processor time in a second, from counters: what the panel beside it shows "
        "without its short peaks.",
        [Query(
            f"sum by (instance) ({rate('tessera_process_cpu_seconds_total', PROCESS)})",
            "{{instance}}",
        )],
    ),
    Panel(
        "Restarts, by unit", "none",
        "In five minutes. See the alert TesseraUnitRestarts.",
        [Query(
            f"sum by (unit) (increase(tessera_unit_restarts_total{{{UNIT}}}[5m]))", "{{unit}}"
        )],
    ),
    Panel(
        "Instances up, by unit", "none",
        "A unit at 0 answers nothing: its tasks refuse, or degrade.",
        [Query(f"sum by (unit) (tessera_unit_up{{{UNIT}}})", "{{unit}}")],
    ),
    Panel(
        "Tensors copied", "Bps",
        "Bytes that a hop had to copy. On one host none should be; between hosts all are.",
        [Query(
            f"sum by (instance) ({rate('tessera_copied_bytes_total', HOST)})", "{{instance}}"
        )],
    ),
    Panel(
        "Spans that no collector got", "cps",
        "Only with --traces. The collector is away or too slow; nothing else suffers.",
        [Query(f"sum by (instance) ({rate('tessera_spans_lost_total', HOST)})", "{{instance}}")],
    ),
])

RESIDENCY = Row("Weights that come and go (--host-memory, --gpu-memory)", [
    Panel(
        "Memory for weights: used and allowed", "decbytes",
        "Used stays below what is allowed, but for a model that is larger: that one comes alone, "
        "and all others leave for it.",
        [
            Query(
                f"tessera_weight_memory_used_bytes{{{HOST}}}", "{{instance}} {{device}} used"
            ),
            Query(
                f"tessera_weight_memory_budget_bytes{{{HOST}}}", "{{instance}} {{device}} allowed"
            ),
        ],
    ),
    Panel(
        "Where weights are", "none",
        "Instances by the place of their weights. Many `waiting` or `loading`: see the alert "
        "TesseraWeightsThrash.",
        [Query(f"count by (residency) (tessera_unit_residency{{{UNIT}}})", "{{residency}}")],
        stacked=True,
    ),
    Panel(
        "Uses without a load", "percentunit",
        "Share of uses that found weights in memory. Below a half: the budget is too small for "
        "what is asked for; raise it, or pin what is asked for most (`residency`).",
        [Query(
            f"1 - sum by (instance) ({rate('tessera_unit_weight_loads_total', UNIT)})"
            f" / sum by (instance) ({rate('tessera_unit_weight_uses_total', UNIT)})",
            "{{instance}}",
        )],
        most=1,
    ),
    Panel(
        "Loads and evictions per second", "cps",
        "As many evictions as loads is usual once memory is full. Many of both for few answers: "
        "weights push each other out.",
        [
            Query(f"sum by (unit) ({rate('tessera_unit_weight_loads_total', UNIT)})",
                  "{{unit}} loads"),
            Query(f"sum by (unit) ({rate('tessera_unit_weight_evictions_total', UNIT)})",
                  "{{unit}} evictions"),
        ],
    ),
    Panel(
        "Time of a load, mean", "s",
        "Much more than bytes over the disk's rate (host) or the bus's (GPU): the disk is shared, "
        "or the page cache too small.",
        [Query(
            f"sum by (unit) ({rate('tessera_unit_weight_load_seconds_total', UNIT)})"
            f" / sum by (unit) ({rate('tessera_unit_weight_loads_total', UNIT)})",
            "{{unit}}",
        )],
    ),
    Panel(
        "Time that goes into loads", "percentunit",
        "One load runs at a time. Near 1, requests wait for weights more than for anything else.",
        [Query(
            f"sum by (instance) ({rate('tessera_unit_weight_load_seconds_total', UNIT)})",
            "{{instance}}",
        )],
    ),
    Panel(
        "Bytes loaded per second", "Bps",
        "Near what the disk or the bus can do: nothing but fewer loads helps.",
        [Query(
            f"sum by (instance) ({rate('tessera_unit_weight_loaded_bytes_total', UNIT)})",
            "{{instance}}",
        )],
        width=12,
    ),
    Panel(
        "Weights of a unit", "decbytes",
        "Bytes of one load. Those that are largest and used least are the ones to take away.",
        [Query(
            f"max by (unit) (tessera_unit_weight_loaded_bytes_total{{{UNIT}}}"
            f" / (tessera_unit_weight_loads_total{{{UNIT}}} > 0))",
            "{{unit}}",
        )],
        kind="bargauge", width=12,
    ),
])

GPUS = Row("GPUs", [
    Panel(
        "Busy", "percentunit",
        "Share of the time that something ran. Low while requests wait: batches are small, or "
        "the CPU does not keep up.",
        [Query(f"nv_gpu_utilization{{{HOST}}}", "{{instance}} {{device}}")],
        most=1,
    ),
    Panel(
        "Memory in use", "percentunit",
        "By all processes. Near 1: the next load or run fails; bound weights with --gpu-memory, "
        "see the alert TesseraGpuMemoryNearlyFull.",
        [Query(
            f"nv_gpu_memory_used_bytes{{{HOST}}} / nv_gpu_memory_total_bytes{{{HOST}}}",
            "{{instance}} {{device}}",
        )],
        most=1,
    ),
    Panel(
        "Memory, by process of ours", "decbytes",
        "What is missing to the panel beside it belongs to others. In a container the driver may "
        "not tell; then it is empty.",
        [Query(
            f"tessera_gpu_process_memory_bytes{{{HOST}}}", "{{instance}} {{device}} {{process}}"
        )],
        stacked=True,
    ),
    Panel(
        "Weights, by unit", "decbytes",
        "Also of those that are not on the GPU now. More than its memory: bound what may stay with "
        "--gpu-memory, or move tasks to another device.",
        [Query(f"sum by (unit) (tessera_unit_gpu_weight_bytes{{{UNIT}}})", "{{unit}}")],
        stacked=True,
    ),
    Panel(
        "Buffers for other processes, by unit", "decbytes",
        "What a unit hands over lies here. It grows with the rows under way.",
        [Query(f"sum by (unit) (tessera_unit_gpu_pool_bytes{{{UNIT}}})", "{{unit}}")],
        stacked=True,
    ),
    Panel(
        "Work of the GPU, by unit", "percentunit",
        "Seconds in a second. The largest is what to batch, or to move to another device.",
        [Query(f"sum by (unit) ({rate('tessera_unit_gpu_seconds_total', UNIT)})", "{{unit}}")],
        stacked=True,
    ),
    Panel(
        "Runs replayed from a CUDA graph", "percentunit",
        "Low: shapes change from request to request, or --no-cuda-graphs.",
        [Query(
            f"sum by (unit) ({rate('tessera_unit_gpu_replayed_runs_total', UNIT)})"
            f" / sum by (unit) ({rate('tessera_unit_gpu_runs_total', UNIT)})",
            "{{unit}}",
        )],
        most=1,
    ),
    Panel(
        "Copies per second, by direction", "cps",
        "Of units in processes. Copies to the host between units on one GPU should be none.",
        [Query(
            f"sum by (direction) ({rate('tessera_unit_gpu_copies_total', UNIT)})", "{{direction}}"
        )],
    ),
    Panel(
        "Power", "watt",
        "At the card's limit its clock falls, and computing takes longer.",
        [Query(f"nv_gpu_power_usage{{{HOST}}}", "{{instance}} {{device}}")],
    ),
    Panel(
        "Energy of an answer", "joule",
        "All that GPUs drew, over all answers; also for others and for being idle.",
        [Query(
            f"sum({rate('nv_energy_consumption', HOST)})"
            f" / sum({rate('nv_inference_request_success', HOST)})"
        )],
    ),
    Panel(
        "Clock", "hertz",
        "It falls under load where power or heat bounds it.",
        [Query(f"tessera_gpu_clock_hertz{{{HOST}}}", "{{instance}} {{device}}")],
    ),
    Panel(
        "Temperature", "celsius",
        "Above 85 degrees the clock falls soon: look at the fans, and at the rack's air.",
        [Query(f"tessera_gpu_temperature_celsius{{{HOST}}}", "{{instance}} {{device}}")],
        orange=80, red=88,
    ),
], folded=True)

ROWS = [WELL, SHARED, QUEUES, EXITS, PROCESSES, RESIDENCY, GPUS]
