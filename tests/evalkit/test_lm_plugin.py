"""The engine as a model of lm-eval's own command."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from evalkit import lm_plugin
from evalkit.backends.scripted import Scripted
from evalkit.errors import EvalkitError


@pytest.fixture
def scripted(monkeypatch):
    """A backend that answers what the prompt's last number says."""
    made = []

    def make(cell):
        made.append(Scripted(lambda request: f" so\n#### {str(request.prompt).split()[-2]}", k=cell.k))
        return made[-1]

    monkeypatch.setattr(lm_plugin, "make_backend", make)
    return made


@pytest.fixture
def task(tmp_path):
    rows = [{"question": f"Say {i} now", "answer": f"#### {i if i % 2 else -1}"} for i in range(4)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    config = {
        "task": "say", "dataset_path": "json", "test_split": "test", "output_type": "generate_until",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "d.jsonl")}, "cache_dir": str(tmp_path / "cache")},
        "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["x"], "do_sample": False, "max_gen_toks": 9},
        "metric_list": [{"metric": "exact_match", "regexes_to_ignore": ["(?s).*#### "], "aggregation": "mean",
                         "higher_is_better": True}],
    }  # fmt: skip
    return config


def test_lm_eval_runs_the_engine_by_name(scripted, task):
    results = cast(Any, simple_evaluate)(
        model="evalkit", model_args="model=gradeschool-m3,k=3,quant=fp8", tasks=[task], device="cuda:0",
        bootstrap_iters=0, task_manager=TaskManager(include_defaults=False),
    )  # fmt: skip
    assert results is not None and results["results"]["say"]["exact_match,none"] == 0.5
    config = results["config"]
    assert (config["cell"]["k"], config["cell"]["quant"], config["cell"]["device"]) == (3, "fp8", "auto")
    assert config["verify_steps"] > 0 and 1 <= config["accepted_length"] <= 4
    assert {r.params.stop for r in scripted[0].asked} == {("x",)}
    assert len({r.params.seed for r in scripted[0].asked}) == 4


def test_loglikelihood_is_the_engines_score(scripted):
    lm = get_model("evalkit").create_from_arg_obj({"k": 0})
    instance = lm_plugin.Instance(request_type="loglikelihood", doc={}, arguments=("a", "bc"), idx=0)
    assert lm.loglikelihood([instance]) == [(-2.0, False)]
    assert lm.loglikelihood_rolling([instance]) == [-1.0]


def test_repeats_have_different_seeds(scripted):
    lm = get_model("evalkit").create_from_arg_string("k=0,seed=4")
    instance = lm_plugin.Instance(request_type="generate_until", doc={}, arguments=("a b c", {"until": "q"}), idx=0,
                                  metadata=("t", 3, 2))  # fmt: skip
    lm.generate_until([instance, instance])
    seeds = [r.params.seed for r in scripted[0].asked]
    assert len(set(seeds)) == 2 and lm_plugin.request_seed(4, 3) in seeds


@pytest.mark.parametrize("given", [{"kay": 3}, {"pretrained": "x"}])
def test_an_unknown_model_argument_is_an_error(scripted, given):
    with pytest.raises(EvalkitError, match="unknown model argument"):
        lm_plugin.EvalkitLM(**given)


@pytest.mark.parametrize(
    ("given", "temperature"),
    [({}, 0), ({"temperature": 0.5}, 0.5), ({"do_sample": False, "temperature": 0.5}, 0), ({"do_sample": True}, 1)],
)
def test_sampling_arguments(given, temperature):
    assert lm_plugin.sampling(given, 0).temperature == temperature
    with pytest.raises(EvalkitError, match="unknown generation argument 'beams'"):
        lm_plugin.sampling({**given, "beams": 4}, 0)


def test_our_tasks_get_absolute_data_files():
    words = lm_plugin.with_our_tasks(["run", "--model", "evalkit", "--tasks", "gradeschool,hellaswag"])
    path, other = words[4].split(",")
    config = yaml.safe_load(Path(path).read_text())
    assert other == "hellaswag" and config["task"] == "gradeschool"
    assert all(f.startswith("/") for f in config["dataset_kwargs"]["data_files"].values())


def test_the_command_runs_and_errors_are_two_lines(scripted, task, tmp_path, capsys, monkeypatch):
    path = tmp_path / "say.yaml"
    path.write_text(yaml.safe_dump(task))
    monkeypatch.setattr("sys.argv", ["x"])
    words = ["run", "--model", "evalkit", "--tasks", str(path), "--model_args"]
    assert lm_plugin.main([*words, "k=3"]) == 0
    assert "exact_match" in capsys.readouterr().out
    assert lm_plugin.main([*words, "k=9"]) == 2
    assert "error: K is 9\nfix: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    ["k=x", "k=2.5", "k=true", "k=-1", "k=nan", "batch=abc", "batch=-1", "batch=0", "seed=x", "threads=x", "tp=x",
     "prefill_decode_interval=x", "prefix_cache=maybe", "prefix_cache=1"],
)  # fmt: skip
def test_numbers_and_booleans_are_read_strictly(scripted, word):
    name, value = word.split("=")
    with pytest.raises(EvalkitError, match=f"model argument {name}={value.capitalize() if value == 'true' else value}"):
        lm_plugin.EvalkitLM.create_from_arg_string(word)
    assert not scripted


def test_words_that_lm_eval_makes_values_of(scripted):
    made = cast(Any, lm_plugin.EvalkitLM).create_from_arg_string("draft=none,graphs=4,prefix_cache=false,batch=8")
    cell = made.get_model_info()["cell"]
    assert (cell["draft"], cell["k"], cell["graphs"], cell["prefix_cache"]) == ("none", 0, "4", False)
    assert lm_plugin.cell_from({"k": -0.0, "batch": 4.0}).engine.max_batch == 4


def test_a_task_that_is_nowhere_is_two_lines(scripted, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["x"])
    words = ["run", "--model", "evalkit", "--model_args", "k=3", "--tasks", str(tmp_path / "nosuch.yaml")]
    assert lm_plugin.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: lm-eval knows no task {tmp_path}/nosuch.yaml\nfix: use grade")
