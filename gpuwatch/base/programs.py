"""Known programs, and the parser that finds the program of a command line.

The tables are the only lists of program names in gpuwatch: shells, terminals, service managers, notebooks, launchers,
schedulers, servers and monitors. A name is that of an executable, of a Python script (with its `.py`), or of a module.
The kernel's own name of a process (`comm`) is cut after 15 characters; `name_from_comm` completes it.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

from gpuwatch.base.text import quote


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _commands(*rows: tuple[str, str, str]) -> Mapping[str, tuple[str, frozenset[str]]]:
    """Return label and subcommands by name; a row has the label, the names, and the subcommands, empty for any."""
    return {name: (label, _names(verbs)) for label, names, verbs in rows for name in names.split()}


# -- shells, terminals and managers --------------------------------------------------------------------------------

SHELLS = _names("sh bash dash zsh fish ksh mksh ksh93 tcsh csh ash rbash nu elvish busybox pwsh xonsh")

INITS = _names("systemd init runit openrc-init s6-svscan")
"""PID 1 of a machine, and a user's service manager, which adopt the children of ended processes.

WSL's is called `init(Ubuntu)`: see `is_init`."""

CONTAINER_INITS = _names("tini tini-static dumb-init docker-init catatonit podman-init")
"""First processes of containers that at once start exactly one other process."""

IDLE_INITS = _names("pause sleep tail cat")
"""First processes of containers that only keep the container alive: they start no other."""

MANAGERS = _names("""
    (sd-pam) s6-supervise runsv runsvdir supervisord supervisor.supervisord circusd PM2
    cron crond anacron atd fcron slurmstepd slurmd pbs_mom sge_execd sge_shepherd
    sbatchd res conmon runc crun dockerd containerd podman docker kubelet
    gnome-shell plasmashell gnome-session-binary Xorg dbus-daemon nomad gitlab-runner
    Runner.Worker buildkite-agent pause gpuwatch airflow celery
""")
"""Programs that start unrelated services, batch jobs, containers and desktops."""

_MANAGER_PREFIXES = ("containerd-shim", "condor_")

MULTIPLEXERS = _names("tmux screen SCREEN zellij dtach abduco")

LOGINS = _names("sshd sshd-session dropbear mosh-server login agetty getty")

USER_SWITCHES = _names("su sudo doas runuser")
"""Programs that start a command, or a shell, as another user."""

TERMINALS = _names("""
    xterm uxterm konsole alacritty kitty ghostty foot tilix ttyd gotty kgx terminator xfce4-terminal lxterminal
    mate-terminal ptyxis guake yakuake terminology urxvt urxvtd rxvt st code code-server code-tunnel code-insiders
    cursor windsurf node java pycharm rserver rsession emacs vim nvim gvim zed spyder dataspell idea
""")
"""Terminal programs, and editors and IDEs that have a terminal (`node` is VS Code's server, `java` is PyCharm)."""

_TERMINAL_PREFIXES = ("gnome-terminal", "wezterm", "jetbrains", "emacs-", "zed-remote-server", "Relay(")

EDITORS = _names("vi view nano hx kak micro mc ranger")
"""Editors and file managers without their own terminal, from which people start programs."""

WRAPPERS = _names("""
    timeout time nohup nice ionice numactl env stdbuf taskset chrt setsid script unbuffer expect strace ltrace gdb
    cuda-gdb watch xargs parallel flock catchsegv choom prlimit systemd-run systemd-inhibit unshare nsenter setpriv
    chpst firejail bwrap apptainer Apptainer singularity Singularity starter starter-suid enroot entr watchexec direnv
    rlwrap proxychains4 uv uvx poetry pipenv hatch pixi rye pdm conda mamba micromamba make gmake ninja just task nsys
    ncu nvprof compute-sanitizer py-spy memray wandb dvc snakemake guild tsp ts pueued aim ipdb perf
""")
"""Programs that run another command. `Apptainer runtime parent` is the title of Apptainer's own process."""

_PYTHON_WRAPPERS = _names("""
    ipython IPython pdb ipdb debugpy cProfile profile coverage kernprof viztracer line_profiler streamlit
""")
"""Python programs that run another script, which follows their own options."""

_STARTERS = _commands(
    ("", "uv conda mamba micromamba poetry pipenv hatch pixi rye pdm fabric colossalai", "run"),
    ("", "accelerate accelerate.commands.accelerate_cli", "launch"),
    ("", "apptainer singularity enroot", "exec run start"),
    ("", "nsys memray py-spy coverage", "profile run record start"),
    ("", "nice nohup env timeout time stdbuf ionice numactl taskset setsid chrt unbuffer catchsegv choom rlwrap", ""),
    ("", "sudo doas exec command strace ltrace proxychains4", ""),
    ("", "uvx ncu nvprof compute-sanitizer firejail bwrap systemd-run", ""),
)
"""Wrappers and launchers whose command follows their options, or their subcommand."""

_DAEMONS = _names("raylet orted prted prte mpispawn hydra_pmi_proxy hydra_bstrap_proxy")
"""Launchers without a command: another program sends them the command to start."""

_NAME_OPTIONS = _names("""
    -J --job-name -n --name -p --partition --prefix --python -o --output -e --error -x -H --host --hostfile --with
    --config_file --extra --group --project --directory -C --image --container-image --role --log_dir --log-dir
""")
"""Options of launchers and wrappers whose value may look like a program."""

_SETUP_COMMANDS = _names("""
    cd source . export set ulimit wait sleep echo exit true trap unset umask module eval date tee mkdir pushd popd
""")
"""Commands of a shell script that only prepare its program."""

_AGENTS = _commands(
    ("", "ray", "start"), ("", "hq prefect", "worker agent"), ("", "clearml-agent clearml_agent", "daemon")
)
"""Programs with subcommands that run one job after another."""

MONITORS = _names("gpuwatch nvidia-smi nvitop nvtop gpustat nv-hostengine nvidia-persistenced Xorg all-smi")
"""Programs that only call the driver, or keep it loaded, and compute nothing."""

# -- notebooks -----------------------------------------------------------------------------------------------------

NOTEBOOK_SERVERS = _names("""
    jupyter-lab jupyter-labhub jupyter-notebook jupyter-nbclassic jupyter-server jupyter-singleuser
    jupyter-kernelgateway jupyter-enterprisegateway jupyterhub-singleuser jupyterhub jupyterlab jupyterlab.labhubapp
    notebook jupyter_server jupyterhub.singleuser jupyter-voila voila kernel_gateway enterprise_gateway
    batchspawner-singleuser marimo
""")

NOTEBOOK_KERNELS = _names("""
    ipykernel_launcher ipykernel_launcher.py ipykernel launch_ipykernel.py
    colab_kernel_launcher colab_kernel_launcher.py
""")

INTERACTIVE_UNITS = (
    *("jupyter", "notebook", "code-server", "code-tunnel", "rstudio", "rserver", "vscode", "openvscode"),
    *("tmux", "screen", "emacs"),
)
"""Prefixes of systemd units below which people start programs by hand: notebooks, editors, terminals.
TheLittlestJupyterHub and systemdspawner call theirs `jupyter-NAME.service`."""

# -- launchers and schedulers --------------------------------------------------------------------------------------


_LAUNCHERS = {
    "torchrun": "torchrun torch.distributed.run torch.distributed.launch",
    "accelerate": "accelerate accelerate-launch accelerate.commands.launch accelerate.commands.accelerate_cli",
    "deepspeed": "deepspeed deepspeed.pt deepspeed.launcher.launch deepspeed.launcher.runner",
    "horovodrun": "horovodrun horovod.runner.launch",
    "composer": "composer composer.cli.launcher",
    "colossalai": "colossalai colossalai.cli",
    "lightning": "fabric lightning",
    "mpirun": """
        mpirun mpiexec orterun prterun prun orted prted prte mpirun_rsh mpispawn hydra_pmi_proxy hydra_bstrap_proxy
        mpiexec.hydra mpirun.openmpi mpiexec.openmpi mpirun.mpich mpiexec.mpich
    """,
    "srun": "srun",
    "ray": "raylet",
}
LAUNCHERS = {name: label for label, names in _LAUNCHERS.items() for name in names.split()}
"""Label of each program that starts the ranks of a run, by its name."""

SIGNAL_FORWARDERS = _LAUNCHERS.keys() - {"ray"}
"""Labels of the launchers that forward SIGINT and SIGTERM to their ranks, or end the ranks at once.

torchrun: torch/distributed/elastic/multiprocessing (SignalException; SubprocessHandler.close does killpg on each rank,
which is a session of its own). mpirun: "Forward all signals from mpirun to the child processes" (open-mpi/ompi#1431).
"""


class Scheduler(NamedTuple):
    """Batch scheduler, with the variables of its jobs."""

    label: str
    job: str
    """Variable with the job's number."""
    mark: str
    """Variable that only a job has, or that exists only where the scheduler is installed."""


SLURM = Scheduler("slurm", "SLURM_JOB_ID", "SLURM_JOB_ID")
SCHEDULERS = (
    SLURM,
    Scheduler("pbs", "PBS_JOBID", "PBS_ENVIRONMENT"),
    Scheduler("lsf", "LSB_JOBID", "LSB_JOBID"),
    Scheduler("sge", "JOB_ID", "SGE_ROOT"),
    Scheduler("condor", "_CONDOR_SLOT", "_CONDOR_JOB_AD"),
    Scheduler("flux", "FLUX_JOB_ID", "FLUX_JOB_ID"),
)
"""Sources: srun(1), qsub(1B) of OpenPBS, bsub(1) of LSF, submit(1) of Grid Engine, HTCondor's manual ("Services for
Running Jobs")."""

# -- servers -------------------------------------------------------------------------------------------------------

_MODEL_SERVERS = _commands(
    ("vLLM", "vllm vllm.entrypoints.cli.main", "serve"),
    ("vLLM", "vllm.entrypoints.openai.api_server vllm.entrypoints.api_server", ""),
    ("SGLang", "sglang", "serve"),
    ("SGLang", "sglang.launch_server", ""),
    ("Triton", "tritonserver triton_python_backend_stub", ""),
    ("Ollama", "ollama", "serve runner"),
    ("Ollama", "ollama_llama_server", ""),
    ("TGI", "text-generation-launcher text-generation-router", ""),
    ("TGI", "text-generation-server", "serve start run"),
    ("TEI", "text-embeddings-router", ""),
    ("llama.cpp", "llama-server llama_cpp.server", ""),
    ("KoboldCpp", "koboldcpp koboldcpp.py", ""),
    ("LMDeploy", "lmdeploy", "serve"),
    ("LightLLM", "lightllm.server.api_server", ""),
    ("Aphrodite", "aphrodite", "serve start run"),
    ("MLC LLM", "mlc_llm", "serve start run"),
    ("TensorRT-LLM", "trtllm-serve tensorrt_llm.commands.serve", ""),
    ("TensorFlow Serving", "tensorflow_model_server", ""),
    ("TorchServe", "torchserve model_service_worker.py", ""),
    ("BentoML", "bentoml", "serve start serve-http serve-grpc"),
    ("OpenLLM", "openllm", "serve start run"),
    ("MLServer", "mlserver", "serve start run"),
    ("KServe", "huggingfaceserver", ""),
    ("Infinity", "infinity_emb", ""),
    ("LocalAI", "local-ai localai", ""),
    ("whisper.cpp", "whisper-server", ""),
    ("Whisper", "wyoming-faster-whisper wyoming_faster_whisper faster-whisper-server speaches", ""),
    ("Xinference", "xinference xinference-local xinference-worker xinference-supervisor", ""),
    ("Tabby", "tabby", "serve"),
    ("Ray Serve", "serve", "run"),
    ("Dynamo", "dynamo.vllm dynamo.sglang dynamo.trtllm", ""),
)
"""Servers of models. All processes below such a server belong to it, also those started through a shell."""

_MODEL_SERVER_MODULES = {
    "fastchat.serve.": "FastChat",
    "lmdeploy.serve.": "LMDeploy",
    "_bentoml_impl.": "BentoML",
    "bentoml_cli.worker": "BentoML",
    "text_generation_server.": "TGI",
}
"""Servers of models by the prefix of their module."""

_MODEL_SERVER_FOLDERS = {
    "comfyui": "ComfyUI",
    "stable-diffusion-webui": "Stable Diffusion web UI",
    "text-generation-webui": "text-generation-webui",
    "tabbyapi": "TabbyAPI",
}
"""Servers that are known only by the folder of their script: `ComfyUI/main.py`."""

_SERVER_TITLES = (
    (r".*::(?:APIServer|ApiServer)", "vLLM"),  # vllm/utils, set_process_title; the prefix may be chosen
    (r"ray::(?:ServeReplica|ProxyActor|HTTPProxyActor)", "Ray Serve"),
    # Of vLLM and of LMDeploy, whose front end is elsewhere.
    (r"ray::RayWorkerWrapper", "model server on Ray"),
    (r"gunicorn: ", "gunicorn"),
    (r"\[celeryd:", "celery"),  # celery/platforms.py, set_mp_process_title
)
"""Titles of servers. `VLLM::EngineCore` is not one: a script that has called vLLM has such a process as well."""

_WEB_SERVERS = _commands(
    ("", "uvicorn gunicorn hypercorn waitress-serve waitress daphne granian uwsgi gradio http.server voila", ""),
    ("", "streamlit chainlit flask", "run"),
    ("", "fastapi", "run dev"),
    ("", "panel bokeh", "serve"),
    ("", "celery dramatiq arq huey_consumer huey_consumer.py taskiq rqworker rq faktory_worker", ""),
)
"""General web servers, and workers of a queue. The processes that they fork belong to them; a process started through a
shell may be a training that a web page started."""

_INTERNAL_LISTENERS = NOTEBOOK_KERNELS.union(LAUNCHERS) | _names("""
    jupyter notebook jupyterhub-singleuser tensorboard tensorboard.main wandb wandb-core wandb-service
    debugpy.adapter visdom dask dask-worker dask-cuda-worker dask-scheduler dask_cuda distributed.cli.dask_worker
    gcs_server ray default_worker.py
""")
"""Programs whose ports serve only themselves: notebook kernels, dashboards of curves, launchers of runs."""

# -- names ---------------------------------------------------------------------------------------------------------

COMM_MAX = 15
"""Bytes of a name that the kernel keeps: TASK_COMM_LEN less the NUL (include/linux/sched.h)."""

_SESSION_KEEPERS = MULTIPLEXERS | LOGINS | CONTAINER_INITS | MANAGERS | NOTEBOOK_SERVERS

_BY_COMM = {name[:COMM_MAX]: name for name in SHELLS | INITS | _SESSION_KEEPERS | USER_SWITCHES | TERMINALS | EDITORS}


def name_from_comm(comm: str) -> str:
    """Return the name of a process's program by its `comm`: `jupyter-noteboo`, `tmux: server`, `-bash`."""
    name = comm.lstrip("-").partition(":")[0]
    return _BY_COMM.get(name, name)


def is_init(name: str) -> bool:
    """Return whether a program adopts processes: PID 1 of a machine, or a user's service manager."""
    return name in INITS or name.startswith("init(")


def is_terminal(name: str) -> bool:
    """Return whether a program owns the terminal of its children: a multiplexer, a login, a terminal, an IDE."""
    return name in MULTIPLEXERS or name in LOGINS or name in TERMINALS or name.startswith(_TERMINAL_PREFIXES)


def is_session_keeper(name: str) -> bool:
    """Return whether a program's children outlive the run that started it: a login, a service manager."""
    return name in _SESSION_KEEPERS or is_init(name) or name.startswith(_MANAGER_PREFIXES)


def is_boundary(name: str) -> bool:
    """Return whether a program's children may be unrelated, so that no run begins with the program."""
    return is_session_keeper(name) or is_terminal(name) or name in EDITORS


def is_monitor(name: str) -> bool:
    """Return whether a program only calls the driver, or keeps it loaded: a monitor, an exporter, a display server."""
    return name in MONITORS or name.startswith("dcgm") or name.endswith("exporter")


# -- command lines -------------------------------------------------------------------------------------------------


class SourceKind(Enum):
    """Kind of a Python program's source."""

    FILE = "file"
    MODULE = "-m"
    CODE = "-c"
    WORKER = "worker"
    """Source of the parent process: the process is its worker."""


class CodeSource(NamedTuple):
    """Source of a Python program: the path of its file, the name of its module, or its code."""

    kind: SourceKind
    text: str = ""


class Command(NamedTuple):
    """Program that a command line runs, and its arguments."""

    name: str
    """Name of the executable, of the script without its folder, or of the module; empty for code and an empty line."""
    arguments: tuple[str, ...] = ()
    source: CodeSource | None = None
    """Source of a Python program; None for another program, and for an interactive Python."""


_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")

_SCRIPT_INTERPRETERS = _names("perl ruby tclsh")
"""Interpreters of known programs other than Python: GNU parallel is written in Perl."""

_TITLE_END = re.compile(r"(?<!:):(?!:)| ")

_WORKER_CODE = ("from multiprocessing.", "import sys; from multiprocessing.")
"""Code of a worker of `spawn` and `forkserver`. Source: multiprocessing/spawn.py, get_command_line."""

_WORKER_MODULE = "joblib.externals.loky."

_KERNEL_CONNECTION = re.compile(r"(?:^|[/=])kernel-(?:v\d+-?)?([0-9A-Za-z][0-9A-Za-z-]{3,63})\.json$")
"""File with a kernel's ports: `kernel-<uuid>.json`, VS Code's `kernel-v2-2107….json`."""


def is_python(path: str) -> bool:
    """Return whether a path is that of a Python interpreter: `/usr/bin/python3.11`."""
    return bool(_PYTHON.fullmatch(path.rpartition("/")[2]))


@functools.lru_cache(maxsize=256)
def parse_command(argv: tuple[str, ...]) -> Command:
    """Return the program that a command line runs: the script or module of an interpreter, else the executable.

    A launcher or wrapper is not skipped, see `find_source`.
    """
    if not argv:
        return Command("")
    if is_python(argv[0]):
        source, arguments = _parse_python(argv[1:])
        if source is None:
            return Command(_executable_name(argv[0]), arguments)
        if source.kind is SourceKind.CODE:
            return Command("", arguments, source)
        if source.kind is SourceKind.FILE:
            return Command(PurePosixPath(source.text).name, arguments, source)
        return Command(source.text.removesuffix(".__main__"), arguments, source)
    name, arguments = _executable_name(argv[0]), argv[1:]
    if name in _SCRIPT_INTERPRETERS:
        place = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
        return Command(_executable_name("".join(arguments[place : place + 1])), arguments[place + 1 :])
    return Command(name, arguments)


def _executable_name(word: str) -> str:
    title = word.lstrip("-").partition(": ")[0]  # `sshd: ada@pts/0`
    return _TITLE_END.split(title.rstrip("/").rpartition("/")[2], maxsplit=1)[0]


def _parse_python(arguments: tuple[str, ...]) -> tuple[CodeSource | None, tuple[str, ...]]:
    """Return the source that a Python interpreter runs, and its arguments. Source: python(1)."""
    place = 0
    while place < len(arguments):
        word, rest = arguments[place], arguments[place + 1 :]
        if word == "-":
            return None, rest
        if not word.startswith("-"):
            return CodeSource(SourceKind.FILE, word), rest
        place += 1
        if word.startswith("--"):
            place += word == "--check-hash-based-pycs"
            continue
        for at, letter in enumerate(word):
            if letter in "cm":
                text = word[at + 1 :] or (rest[0] if rest else "")
                kind = SourceKind.CODE if letter == "c" else SourceKind.MODULE
                return CodeSource(kind, text), rest if word[at + 1 :] else rest[1:]
            if letter in "WX":  # the rest of the word is its value, or the next word
                place += at == len(word) - 1
                break
    return None, ()


@functools.lru_cache(maxsize=128)
def find_source(argv: tuple[str, ...]) -> CodeSource | None:
    """Return the Python source that a command line runs; for torchrun and similar programs the user's script.

    None for an interactive Python, a notebook kernel, and another program.
    """
    name, arguments, source = parse_command(argv)
    if source is None or name in NOTEBOOK_KERNELS:
        return None
    if source.kind is SourceKind.CODE:
        return CodeSource(SourceKind.WORKER) if source.text.startswith(_WORKER_CODE) else source
    if source.kind is SourceKind.MODULE and name.startswith(_WORKER_MODULE):
        return CodeSource(SourceKind.WORKER)
    if name not in LAUNCHERS and name.removesuffix(".py") not in _PYTHON_WRAPPERS:
        return source
    words = _find_started(name, arguments)
    if is_python("".join(words[:1])):
        return find_source(words)
    if words[:1] == ("-m",):
        return CodeSource(SourceKind.MODULE, "".join(words[1:2]))
    return CodeSource(SourceKind.FILE, words[0]) if words and words[0].endswith(".py") else None


def unread_code(argv: tuple[str, ...]) -> str:
    """Return why the code of a command line is not in a file that is read; empty for a script, and for a monitor.

    A module of Python counts: its file may still be read, if it is the user's.
    """
    if is_kernel(argv):
        return "the code of a notebook is not read"
    name, _, source = parse_command(argv)
    if source is None and (is_monitor(name) or name in MANAGERS):
        return ""
    found = find_source(argv)
    if found is not None:
        return f"the code of {found.text.partition('.')[0]} is not read" if found.kind is SourceKind.MODULE else ""
    if name in _PYTHON_WRAPPERS or (source is None and bool(argv) and is_python(argv[0])):  # ipython
        return "code that is typed or piped into Python is not read"
    return f"the code of {name} is not read" if name else ""


def is_worker(argv: tuple[str, ...]) -> bool:
    """Return whether a command line belongs to a worker of multiprocessing or joblib."""
    source = find_source(argv)
    return source is not None and source.kind is SourceKind.WORKER


# -- notebooks and servers by their command line -------------------------------------------------------------------


def is_notebook_server(argv: tuple[str, ...]) -> bool:
    """Return whether a command line belongs to a server that starts notebook kernels."""
    name = parse_command(argv).name
    if name == "jupyter":
        return any(f"jupyter-{word}" in NOTEBOOK_SERVERS for word in argv[1:4])
    return name in NOTEBOOK_SERVERS


def is_kernel(argv: tuple[str, ...]) -> bool:
    """Return whether a command line belongs to a notebook kernel: by its program, or by a file of a kernel's ports."""
    return parse_command(argv).name in NOTEBOOK_KERNELS or ("--existing" not in argv and bool(find_kernel_id(argv)))


@functools.lru_cache(maxsize=128)
def find_kernel_id(argv: tuple[str, ...]) -> str:
    """Return the id in the name of the file with a notebook kernel's ports; empty where no argument names one."""
    return next((found[1] for word in argv[1:] if (found := _KERNEL_CONNECTION.search(word))), "")


@functools.lru_cache(maxsize=128)
def find_model_server(argv: tuple[str, ...]) -> str:
    """Return the label of a command line's model server; empty where it starts none."""
    title = argv[0] if argv else ""
    for pattern, label in _SERVER_TITLES:
        if re.match(pattern, title):
            return label
    name, arguments, source = parse_command(argv)
    label, verbs = _MODEL_SERVERS.get(name, ("", frozenset()))
    if label:
        return label if _has_verb(verbs, arguments) else ""
    for prefix, label in _MODEL_SERVER_MODULES.items():
        if name.startswith(prefix):
            return label
    if name == "java" and "org.pytorch.serve.ModelServer" in argv:
        return "TorchServe"
    path = title if source is None and not is_python(title) else ""
    if source is not None and source.kind is SourceKind.FILE:
        path = source.text
    folders = path.lower().split("/")[:-1]
    return next((label for folder, label in _MODEL_SERVER_FOLDERS.items() if folder in folders), "")


def find_web_server(argv: tuple[str, ...]) -> str:
    """Return the name of a command line's web server or queue worker; empty where it starts none."""
    name, arguments, _ = parse_command(argv)
    return name if name in _WEB_SERVERS and _has_verb(_WEB_SERVERS[name][1], arguments) else ""


def find_model(argv: tuple[str, ...]) -> str:
    """Return the model that the command line of a model's server names, as it is written; empty for none."""
    words = parse_command(argv).arguments if find_model_server(argv) else ()
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--model", "--model-path", "--model_path", "--model-id"):
            return value if equals else "".join(words[place + 1 : place + 2])
    return words[1] if words[:1] == ("serve",) and words[1:] and not words[1].startswith("-") else ""


def _has_verb(verbs: frozenset[str], arguments: Sequence[str]) -> bool:
    return not verbs or bool(arguments and arguments[0] in verbs)


def is_internal_listener(argv: tuple[str, ...]) -> bool:
    """Return whether the ports of a command line's program serve only itself, and no requests."""
    return parse_command(argv).name in _INTERNAL_LISTENERS


# -- roles in a run ------------------------------------------------------------------------------------------------


class Role(Enum):
    """Role of an ancestor in the run of a process."""

    MEMBER = "member"
    """Process that belongs to the run: it computes, or starts processes that do."""
    LAUNCHER = "launcher"
    """Process that starts the ranks of one run."""
    WRAPPER = "wrapper"
    """A shell with a script, or a wrapper (timeout, xargs, make): each of its children is a separate run."""
    BOUNDARY = "boundary"
    """An interactive shell, a login, a terminal, a service manager: the run begins below it."""


_SHELL_VALUES = _names("-o +o -O +O --rcfile --init-file")
"""Options of shells whose value is the next word. Source: bash(1), zshoptions(1)."""


def find_executable(argv: tuple[str, ...], comm: str = "") -> str:
    """Return the name of a process's program by its command line, or by its `comm` where that is empty."""
    return parse_command(argv).name or ("" if argv else comm.partition(":")[0])


def find_launcher(argv: tuple[str, ...], comm: str = "") -> str:
    """Return the label of the launcher that a process is: `torchrun`; empty for any other process."""
    return LAUNCHERS.get(find_executable(argv, comm), "")


@functools.lru_cache(maxsize=128)
def find_role(argv: tuple[str, ...], comm: str = "") -> Role:
    """Return the role that an ancestor of this command line and `comm` has in a run."""
    name = find_executable(argv, comm)
    if name in LAUNCHERS:
        return Role.LAUNCHER
    if name in SHELLS:
        return Role.WRAPPER if _shell_words(argv) else Role.BOUNDARY  # an interactive one has no script
    if name in WRAPPERS or name in USER_SWITCHES or _is_debugger(argv):
        return Role.WRAPPER
    is_agent = name in _AGENTS and not _AGENTS[name][1].isdisjoint(argv[1:4])
    return Role.BOUNDARY if is_agent or is_boundary(name) or is_notebook_server(argv) else Role.MEMBER


def _shell_words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a shell's script and its arguments, or the option with `c` and the command; empty where there is none."""
    words = parse_command(argv).arguments
    place = int(bool(argv) and PurePosixPath(argv[0]).name == "busybox")
    while place < len(words):
        word = words[place]
        if not word.startswith(("-", "+")):
            return words[place:]
        if word == "--":
            return words[place + 1 :] or (word,)
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return words[place:]
        place += 2 if word in _SHELL_VALUES else 1
    return ()


def _is_debugger(argv: tuple[str, ...]) -> bool:
    """Return whether a command line is VS Code's debugger with a program: `python …/debugpy/launcher 4711 --`."""
    source = parse_command(argv).source
    return source is not None and source.kind is SourceKind.FILE and "/debugpy/" in f"{source.text}/"


# -- the program that runs, as on screen -------------------------------------------------------------------------

_MOST_WRAPPERS = 8
"""Launchers, wrappers and shells in a row that are skipped, at most."""

_PATH_START = ("/", "./", "../", "~/")
_SCRIPTS = (".py", ".sh", ".ipynb", ".jl", ".R")
_STARTED = SHELLS | LAUNCHERS.keys() | _MODEL_SERVERS.keys() | _STARTERS.keys()
_ASSIGNMENT = r"[A-Za-z_]\w*="
_NO_PROGRAM = r"[-+].*|0x[\da-f]+|[\d.,:-]+[smhd]?|[A-Za-z_]\w*=.*|.*\.(?:sif|simg|sqsh)"
_REDIRECTION = r"[12&]?>>?(?:&[12-]|\s*[^\s;&|]+)|<\s*[^\s;&|<(]+"
_COMMON_SCRIPTS = _names("__main__.py main.py app.py run.py server.py")
"""Scripts with a common name, which only their folder distinguishes."""


def split_command(line: str) -> tuple[str, ...]:
    """Return the words of a line of `text.format_command_line`; of a cut one, and of a title, those between blanks."""
    if "'" in line or '"' in line:
        try:
            return tuple(shlex.split(line))
        except ValueError:  # it was cut within a quote, or a title has one
            pass
    return tuple(line.split())


@functools.lru_cache(maxsize=2048)
def label(line: str) -> str:
    """Return a line of `text.format_command_line` for display: script or module first, then the arguments.

    `train.py --lr 1`, `-m pkg.train`: without interpreter, launchers and wrappers. Unknown parts stay.
    """
    argv = split_command(line)
    words = unwrap(argv)
    if is_kernel(argv):
        return f"notebook {find_kernel_id(argv)[:8]}".rstrip()
    if not words or words[0] == "-m":
        return " ".join(map(quote, words))
    if words == argv and not words[0].endswith(_SCRIPTS):
        program, blank, rest = line.partition(" ")
        return (program.rpartition("/")[2] if program.startswith(_PATH_START) else program) + blank + rest
    path = PurePosixPath(words[0])
    name = "/".join(path.parts[-2:] if path.name in _COMMON_SCRIPTS else path.parts[-1:]).lstrip("/")
    return " ".join(map(quote, (name, *words[1:])))


@functools.lru_cache(maxsize=256)
def unwrap(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program that a command line finally runs, with its arguments: a script, a module or an executable.

    Python, and the launchers, wrappers and shells that start it, are left out as far as they are understood.
    """
    for _ in range(_MOST_WRAPPERS):
        inner = _find_inner(argv)
        if not inner:
            break
        argv = inner
    return argv


def _find_inner(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that a command line's program starts; empty where there is none, or it is not understood."""
    if not argv or argv[0] == "-m":
        return ()
    name, arguments, source = parse_command(argv)
    if name in SHELLS:
        words = _shell_words(argv)
        is_script = bool(words) and words[0].startswith("-")
        return _find_in_script("".join(words[1:2])) if is_script else words
    starts = name in _STARTERS or name.removesuffix(".py") in _PYTHON_WRAPPERS or _is_debugger(argv)
    if (starts or (name in LAUNCHERS and name not in _DAEMONS)) and (found := _find_started(name, arguments)):
        return found
    if source is not None and source.kind is SourceKind.FILE:
        return (source.text, *arguments)
    return ("-m", source.text, *arguments) if source is not None and source.kind is SourceKind.MODULE else ()


def _find_started(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command after the options of a launcher, not all known: the first word that must be it.

    Else the first path, else the first word that is neither an option, its value, nor a number.
    """
    _, verbs = _STARTERS.get(name, ("", frozenset()))
    if verbs:
        verb = next((place for place, word in enumerate(words[:8]) if word in verbs), None)
        if verb is None:
            return ()
        words = words[verb + 1 :]
    has_modules = LAUNCHERS.get(name, name) not in ("srun", "mpirun", "numactl")
    places = [place for place, _ in enumerate(words) if not place or words[place - 1] not in _NAME_OPTIONS]
    own = [place for place in places if not place or not re.fullmatch("-[^=]*", words[place - 1])]
    for place in places:
        word = words[place]
        if word == "--":
            return words[place + 1 :]
        if has_modules and word in ("-m", "--module"):
            return ("-m", *words[place + 1 :])
        is_path = place in own and word.startswith(_PATH_START)
        is_program = is_path or word.endswith(_SCRIPTS) or is_python(word) or _executable_name(word) in _STARTED
        if is_program and not re.fullmatch(_NO_PROGRAM, word):
            return words[place:]
    paths = [place for place in places if words[place].startswith(_PATH_START)]
    plain = [place for place in own if not re.fullmatch(_NO_PROGRAM, words[place])]
    return words[(plain or paths)[0] :] if plain or paths else ()


def _find_in_script(script: str) -> tuple[str, ...]:
    """Return the one command of a shell's script; empty where there are several, or none."""
    lexer = shlex.shlex(re.sub(_REDIRECTION, " ", script.replace("\n", ";")), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and set(word) <= set("();<>|&"):
                commands.append([])
            elif commands[-1] or not re.match(_ASSIGNMENT, word):
                commands[-1].append(word)
    except ValueError:  # it was cut
        return ()
    found = [
        tuple(one) for one in commands if one and one[0] not in _SETUP_COMMANDS and one[:2] != ["conda", "activate"]
    ]
    return found[0] if len(found) == 1 else ()
