"""Ways to break the board, the rules, the guide and the page of GPUs. Each must be noticed."""

import copy
import re

import board
import guide
import rules
import source


def misspell_query(the_board: dict) -> None:
    target = board.panels(the_board)[3][1]["targets"][0]
    target["expr"] = target["expr"].replace("nv_inference_request_success", "nv_inference_success")


def misspell_histogram(the_board: dict) -> None:
    for _, panel in board.panels(the_board):
        for target in panel["targets"]:
            target["expr"] = target["expr"].replace("_computing_seconds_", "_computing_second_")


def misspell_variable(the_board: dict) -> None:
    target = board.panels(the_board)[0][1]["targets"][0]
    target["expr"] = target["expr"].replace("$host", "$hosts")


def misspell_variable_query(the_board: dict) -> None:
    the_board["templating"]["list"][1]["definition"] = "label_values(tessera_queue, instance)"


def forget_description(the_board: dict) -> None:
    board.panels(the_board)[5][1]["description"] = "Latency."


def invent_unit(the_board: dict) -> None:
    board.panels(the_board)[5][1]["fieldConfig"]["defaults"]["unit"] = "seconds"


def cover_panel(the_board: dict) -> None:
    board.panels(the_board)[1][1]["gridPos"]["x"] -= 1


def use_plugin(the_board: dict) -> None:
    board.panels(the_board)[1][1]["type"] = "natel-discrete-panel"


BOARD_BREAKAGES = [
    misspell_query,
    misspell_histogram,
    misspell_variable,
    misspell_variable_query,
    forget_description,
    invent_unit,
    cover_panel,
    use_plugin,
]


def forget_summary(the_rules: list[dict]) -> None:
    del rules.alerts(the_rules)[0]["annotations"]["summary"]


def forget_severity(the_rules: list[dict]) -> None:
    del rules.alerts(the_rules)[1]["labels"]


def link_elsewhere(the_rules: list[dict]) -> None:
    rules.alerts(the_rules)[2]["annotations"]["runbook_url"] = "docs/monitoring.md#nothing"


def misspell_rule(the_rules: list[dict]) -> None:
    the_rules[-1]["expr"] = the_rules[-1]["expr"].replace("spans", "span")


def add_alert(the_rules: list[dict]) -> None:
    """One that the guide says nothing of, and that has no test."""
    added = copy.deepcopy(the_rules[-1])
    added["alert"] = "TesseraNew"
    added["annotations"]["runbook_url"] = "docs/monitoring.md#tesseranew"
    the_rules.append(added)


def take_alert(the_rules: list[dict]) -> None:
    """The guide still has it."""
    the_rules.pop()


RULE_BREAKAGES = [
    forget_summary,
    forget_severity,
    link_elsewhere,
    misspell_rule,
    add_alert,
    take_alert,
]


def forget_metric(text: str) -> str:
    return re.sub(r"^\| `tessera_unit_up`.*\n", "", text, flags=re.MULTILINE)


def invent_metric(text: str) -> str:
    return text.replace("| `tessera_queue_length`", "| `tessera_queue_size`")


GUIDE_BREAKAGES = [forget_metric, invent_metric]


def rename_metric(page: dict) -> None:
    page["nv_gpu_usage"] = page.pop("nv_gpu_utilization")


def change_help(page: dict) -> None:
    page["nv_gpu_power_usage"].help = "Watts"


def change_kind(page: dict) -> None:
    page["nv_energy_consumption"].kind = "gauge"


PAGE_BREAKAGES = [rename_metric, change_help, change_kind]


def check_board(the_board: dict, names: set[str]) -> list[str]:
    return board.check(the_board) + board.check_metrics(the_board, names)


def check_rules(the_board: dict, the_rules: list[dict], text: str, names: set[str]) -> list[str]:
    complaints = rules.check(the_rules) + rules.check_metrics(the_rules, names)
    complaints += rules.check_tested(the_rules, rules.load_tests())
    return complaints + guide.check(text, the_board, the_rules)


def check(the_board: dict, the_rules: list[dict], text: str, names: set[str]) -> list[str]:
    """Breakages that nobody notices."""
    gpu_source = source.GPU_SOURCE.read_text()
    tried = [
        (BOARD_BREAKAGES, the_board, lambda broken: check_board(broken, names)),
        (RULE_BREAKAGES, the_rules, lambda broken: check_rules(the_board, broken, text, names)),
        (
            PAGE_BREAKAGES,
            source.gpu_page(),
            lambda broken: source.check_gpu_page(broken, gpu_source),
        ),
    ]
    complaints = [
        f"{breakage.__name__} is not noticed"
        for breakage in GUIDE_BREAKAGES
        if not guide.check_names(breakage(text), names)
    ]
    for breakages, whole, find in tried:
        for breakage in breakages:
            broken = copy.deepcopy(whole)
            breakage(broken)
            if broken == whole:
                complaints.append(f"{breakage.__name__} breaks nothing")
            if not find(broken):
                complaints.append(f"{breakage.__name__} is not noticed")
    return complaints
