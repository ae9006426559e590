#compdef gpuwatch

# Generated from gpuwatch's parser by shtab (https://github.com/tqdm/shtab), copyright 2020-2026 Casper da Costa-Luis.
# This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0.
# If a copy of the MPL was not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
# Usage:
# 1) Copy this to a file named _gpuwatch (e.g. ~/.local/share/zsh_completion/_gpuwatch).
# 2) Add the following line to your .zshrc:
#    fpath=(~/.local/share/zsh_completion $fpath)
# See also: https://github.com/zsh-users/zsh-completions/blob/master/zsh-completions-howto.org


_shtab_gpuwatch_commands() {
  local _commands=(
    completion:'Print the completions for a shell: bash, zsh, fish or tcsh.'
    config:'Show, check or create a gpuwatch.toml.'
    docs:'Show the guide, one page per subject.'
    doctor:'Check the driver, permissions, terminal and files, and say how to mend what is wrong.'
    events:'Alerts that were raised and how they ended, from what gpuwatch has recorded.'
    explain:'Show what a process declared, which GPUs it sees, and the evidence.'
    kill:'End your own processes, or a whole run, and report what became of them.'
    pick:'Print GPUs that have room, for CUDA_VISIBLE_DEVICES.'
    replay:'Show a recording in the dashboard: play it, and move to any time of it.'
    report:'How much each user held and used, from what gpuwatch has recorded.'
    run:'Pick GPUs, set the share for every framework, start a program.'
    status:'One short line for the status bar of tmux.'
    strays:'Your own processes that nobody attends to and that still hold memory, and why.'
    visible:'Show which GPUs a CUDA_VISIBLE_DEVICES value makes visible here.'
    watch:'Monitor without a terminal: one line per event, messages.'
  )
  _describe 'gpuwatch commands' _commands
}

_shtab_gpuwatch_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "(- : *)--version[show program\'s version number and exit]"
  "--once[print one snapshot and exit]"
  "--json[with --once\: as one JSON object\; --json\=gpustat\: that of gpustat]"
  "--stream[print one JSON line per snapshot until interrupted]"
  "*--recording[with --once\: a snapshot of a recording\; may be repeated]:FILE:_files"
  "--at[the time of that snapshot\: 03\:10, \'2026-11-21 03\:10\' (default\: the last)]:TIME:"
  "--demo[show a simulated machine instead of this one]"
  "--only[only these GPUs\; no driver call is made to the others]:0,2:"
  "--user[start with the processes of one user]:NAME:"
  "--mine[start with your own processes]"
  "--filter[start with the processes that match\: \'mem\>10GiB user\:ada\', \@name]:TEXT:"
  "--interval[time between two samples\: 2, 500ms (0.1 to 3600 s\; default 1)]:S:"
  "--memory-warning[warn when under P percent of a GPU is free (default 10)]:P:"
  "--memory-critical[the same for a critical alert (default 5)]:P:"
  "--bell[ring the terminal\'s bell on an alert]"
  "--read-only[do not offer to end processes]"
  "--allow-root-kill[allow root to end processes\: its own, or under sudo those of the caller]"
  "--wait[wait for a driver where there is none]"
  "--theme[dark (the default), light, or a theme of Textual\: nord]:NAME:(dark light)"
  "--ascii[print only ASCII characters]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--record[record to FILE.gz or FILE.zst]:FILE:_files"
  "--record-size[size at which FILE becomes an older part (default 256MiB\; 0\: never)]:SIZE:"
  "--record-keep[number of older parts that are kept (default 8)]:N:"
  "--record-commands[record whole command lines (default\: the names of programs)]"
  "--anonymise[record stand-ins for users, hosts, programs, paths and names]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_defaults_added=0

_shtab_gpuwatch_completion_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  ":bash, zsh, fish or tcsh:(bash zsh fish tcsh)"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_completion_defaults_added=0

_shtab_gpuwatch_config_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--show[every key, its value, and where it comes from]"
  "--init[write a commented file\; never over one that is there]"
  "--check[read the files and list their mistakes]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_config_defaults_added=0

_shtab_gpuwatch_docs_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  ":such as guide or alerts (default\: list the pages):(guide shares alerts configuration stream service recording shell python design security)"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_docs_defaults_added=0

_shtab_gpuwatch_doctor_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_doctor_defaults_added=0

_shtab_gpuwatch_events_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "*--recording[read a recording instead\; may be repeated]:FILE:_files"
  "--since[how far back\: 8h, 7d (default 24h\; of a recording\: all of it)]:8h:"
  "--gpu[about these GPUs alone]:0,2:"
  "--user[about one user]:NAME:"
  "--rule[of one rule\: \'uses more than declared\', or its beginning]:NAME:(XID data-stale dead-process-holds-memory gpu-health idle-but-held memory-near-limit memory-of-unknown-processes misspelt-variable opened-GPUs-it-does-not-use outside-visible-devices overbooked past-start-size power-at-limit row-remap temperature-near-slowdown throttled time-to-full uncorrected-ECC uses-more-than-declared)"
  "--file[another store than your own]:FILE:_files"
  "--follow[go on with what is recorded, until interrupted]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_events_defaults_added=0

_shtab_gpuwatch_explain_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
  ":a process that holds a GPU:"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_explain_defaults_added=0

_shtab_gpuwatch_kill_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--signal[INT, TERM or KILL (default\: TERM)]:NAME:(INT TERM KILL)"
  "--job[the whole run that it belongs to\: launcher, ranks, workers]"
  "--yes[do not ask]"
  "--allow-root-kill[let root end processes\: its own, under sudo those of the caller]"
  "--read-only[end nothing\: refuse all]"
  "(*):processes of yours that hold a GPU:"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_kill_defaults_added=0

_shtab_gpuwatch_pick_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
  "--share[share of each GPU\: 0.4 or 40\%]:F:"
  "--memory[memory of each GPU\: 20GiB]:SIZE:"
  "-n[how many GPUs (default 1)]:N:"
  "--max-util[no GPU that is more than P percent busy]:P:"
  "--ignore-reservations[ignore what others reserved, and print whose it is]"
  "--only[choose among these GPUs]:0,2:"
  "--index[print indices of NVML instead of UUIDs]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_pick_defaults_added=0

_shtab_gpuwatch_replay_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--at[begin at this time\: 03\:10, 03\:10\:22, \'2026-11-21 03\:10\']:TIME:"
  "--filter[start with the processes that match]:TEXT:"
  "--theme[dark (the default), light, or a theme of Textual\: nord]:NAME:(dark light)"
  "(*):recordings, played as one\; older parts are found:_files"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_replay_defaults_added=0

_shtab_gpuwatch_report_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "*--recording[read a recording instead\; may be repeated]:FILE:_files"
  "--since[how far back\: 8h, 7d (default 7d\; of a recording\: all of it)]:7d:"
  "--by[user, gpu or job (default\: user)]:WHAT:(user gpu job)"
  "--csv[as CSV, a line a row]"
  "--html[as a page with charts, written to FILE]:FILE:_files"
  "--file[another file than your own]:FILE:_files"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_report_defaults_added=0

_shtab_gpuwatch_run_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--share[share of each GPU\: 0.4 or 40\%]:F:"
  "--memory[memory of each GPU\: 20GiB]:SIZE:"
  "-n[how many GPUs (default 1)]:N:"
  "--max-util[no GPU that is more than P percent busy]:P:"
  "--ignore-reservations[ignore what others reserved, and print whose it is]"
  "--gpu[these GPUs (default\: auto, those with the most room)]:0,2:"
  "--quiet[do not print what was set]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_run_defaults_added=0

_shtab_gpuwatch_status_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
  "--tmux[with the colours of tmux\'s status line]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_status_defaults_added=0

_shtab_gpuwatch_strays_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_strays_defaults_added=0

_shtab_gpuwatch_visible_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
  "--order[CUDA_DEVICE_ORDER (default\: that of your environment)]:order:(PCI_BUS_ID FASTEST_FIRST)"
  ":such as 0,2 (default\: that of your environment):"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_visible_defaults_added=0

_shtab_gpuwatch_watch_options=(
  "(- : *)"{-h,--help}"[show this help message and exit]"
  "--config[read FILE instead of your gpuwatch.toml]:FILE:_files"
  "--ascii[print only ASCII characters]"
  "--json[print JSON]"
  "--demo[show a simulated machine instead of this one]"
  "--events[record the events in FILE instead of your own store]:FILE:_files"
  "--quiet[print nothing but what goes wrong]"
  "--interval[time between two samples]:S:"
  "--only[these GPUs alone]:0,2:"
  "--record[record to FILE.gz or FILE.zst]:FILE:_files"
  "--record-size[size at which FILE becomes an older part (default 256MiB\; 0\: never)]:SIZE:"
  "--record-keep[number of older parts that are kept (default 8)]:N:"
  "--record-commands[record whole command lines (default\: the names of programs)]"
  "--anonymise[record stand-ins for users, hosts, programs, paths and names]"
)

# guard to ensure default positional specs are added only once per session
_shtab_gpuwatch_watch_defaults_added=0


_shtab_gpuwatch() {
  local context state line curcontext="$curcontext" one_or_more='(*)' remainder='(-)*:' default='*::: :->gpuwatch'

  # Add default positional/remainder specs only if none exist, and only once per session
  if (( ! _shtab_gpuwatch_defaults_added )); then
    if (( ${_shtab_gpuwatch_options[(I)${(q)one_or_more}*]} +          ${_shtab_gpuwatch_options[(I)${(q)remainder}*]} +          ${_shtab_gpuwatch_options[(I)${(q)default}]} == 0 )); then
      _shtab_gpuwatch_options+=(': :_shtab_gpuwatch_commands' '*::: :->gpuwatch')
    fi
    _shtab_gpuwatch_defaults_added=1
  fi
  _arguments -C -s $_shtab_gpuwatch_options

  case $state in
    gpuwatch)
      words=($line[1] "${words[@]}")
      (( CURRENT += 1 ))
      curcontext="${curcontext%:*:*}:_shtab_gpuwatch-$line[1]:"
      case $line[1] in
        completion) _arguments -C -s $_shtab_gpuwatch_completion_options ;;
        config) _arguments -C -s $_shtab_gpuwatch_config_options ;;
        docs) _arguments -C -s $_shtab_gpuwatch_docs_options ;;
        doctor) _arguments -C -s $_shtab_gpuwatch_doctor_options ;;
        events) _arguments -C -s $_shtab_gpuwatch_events_options ;;
        explain) _arguments -C -s $_shtab_gpuwatch_explain_options ;;
        kill) _arguments -C -s $_shtab_gpuwatch_kill_options ;;
        pick) _arguments -C -s $_shtab_gpuwatch_pick_options ;;
        replay) _arguments -C -s $_shtab_gpuwatch_replay_options ;;
        report) _arguments -C -s $_shtab_gpuwatch_report_options ;;
        run) _arguments -C -s $_shtab_gpuwatch_run_options ;;
        status) _arguments -C -s $_shtab_gpuwatch_status_options ;;
        strays) _arguments -C -s $_shtab_gpuwatch_strays_options ;;
        visible) _arguments -C -s $_shtab_gpuwatch_visible_options ;;
        watch) _arguments -C -s $_shtab_gpuwatch_watch_options ;;
      esac
  esac
}



typeset -A opt_args

if [[ $zsh_eval_context[-1] == eval ]]; then
  # eval/source/. command, register function for later
  compdef _shtab_gpuwatch -N gpuwatch
else
  # autoload from fpath, call function directly
  _shtab_gpuwatch "$@"
fi
