# Generated from gpuwatch's parser by shtab (https://github.com/tqdm/shtab), copyright 2020-2026 Casper da Costa-Luis.
# This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0.
# If a copy of the MPL was not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
# Usage:
# 1) Copy this to ~/.config/fish/completions/gpuwatch.fish
# 2) Ensure a binary named gpuwatch is in your PATH
# See also: https://fishshell.com/docs/current/completions.html#where-to-put-completions


# Parse current commandline:
# - _shtab_gpuwatch_cmdpath=(sub)command path seen so far
# - _shtab_gpuwatch_npos=number of positional arguments given after it
# - options are skipped based on _shtab_gpuwatch_opts_with_value & _shtab_gpuwatch_commands lists
function _shtab_gpuwatch_scan
  set -g _shtab_gpuwatch_cmdpath ''
  set -g _shtab_gpuwatch_npos 0
  set -l tokens (commandline -opc)
  set -e tokens[1]
  set -l expect_value 0
  for t in $tokens
    if test $expect_value -eq 1
      set expect_value 0
      continue
    end
    switch "$t"
      case '--*=*'
        continue
      case '-*'
        if contains -- $t $_shtab_gpuwatch_opts_with_value
          set expect_value 1
        end
        continue
      case '*'
        if test $_shtab_gpuwatch_npos -eq 0
          set -l candidate $t
          if test -n "$_shtab_gpuwatch_cmdpath"
            set candidate "$_shtab_gpuwatch_cmdpath $t"
          end
          if contains -- $candidate $_shtab_gpuwatch_commands
            set -g _shtab_gpuwatch_cmdpath $candidate
            continue
          end
        end
        set -g _shtab_gpuwatch_npos (math $_shtab_gpuwatch_npos + 1)
    end
  end
end

# Condition helper: true if the current (sub)command path equals the given one.
function _shtab_gpuwatch_using
  _shtab_gpuwatch_scan
  test "$_shtab_gpuwatch_cmdpath" = "$argv"
end

set -g _shtab_gpuwatch_commands explain visible pick run strays kill report events replay watch status config doctor docs completion
set -g _shtab_gpuwatch_opts_with_value --at --by --config --events --file --filter --gpu --html --interval --max-util --memory --memory-critical --memory-warning --only --order --record --record-keep --record-size --recording --rule --share --signal --since --theme --user -n

complete -c gpuwatch -e
complete -c gpuwatch -f

complete -c gpuwatch -n _shtab_gpuwatch_using -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n _shtab_gpuwatch_using -l version -d 'show program'"'"'s version number and exit'
complete -c gpuwatch -n _shtab_gpuwatch_using -l once -d 'print one snapshot and exit'
complete -c gpuwatch -n _shtab_gpuwatch_using -l json -d 'with --once: as one JSON object; --json=gpustat: that of gpustat'
complete -c gpuwatch -n _shtab_gpuwatch_using -l stream -d 'print one JSON line per snapshot until interrupted'
complete -c gpuwatch -n _shtab_gpuwatch_using -l recording -xka "(__fish_complete_path (commandline -ct))" -d 'with --once: a snapshot of a recording; may be repeated'
complete -c gpuwatch -n _shtab_gpuwatch_using -l at -x -d 'the time of that snapshot: 03:10, '"'"'2026-11-21 03:10'"'"' (default: the last)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n _shtab_gpuwatch_using -l only -x -d 'only these GPUs; no driver call is made to the others'
complete -c gpuwatch -n _shtab_gpuwatch_using -l user -x -d 'start with the processes of one user'
complete -c gpuwatch -n _shtab_gpuwatch_using -l mine -d 'start with your own processes'
complete -c gpuwatch -n _shtab_gpuwatch_using -l filter -x -d 'start with the processes that match: '"'"'mem>10GiB user:ada'"'"', @name'
complete -c gpuwatch -n _shtab_gpuwatch_using -l interval -x -d 'time between two samples: 2, 500ms (0.1 to 3600 s; default 1)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l memory-warning -x -d 'warn when under P percent of a GPU is free (default 10)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l memory-critical -x -d 'the same for a critical alert (default 5)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l bell -d 'ring the terminal'"'"'s bell on an alert'
complete -c gpuwatch -n _shtab_gpuwatch_using -l read-only -d 'do not offer to end processes'
complete -c gpuwatch -n _shtab_gpuwatch_using -l allow-root-kill -d 'allow root to end processes: its own, or under sudo those of the caller'
complete -c gpuwatch -n _shtab_gpuwatch_using -l wait -d 'wait for a driver where there is none'
complete -c gpuwatch -n _shtab_gpuwatch_using -l theme -xka "dark light" -d 'dark (the default), light, or a theme of Textual: nord'
complete -c gpuwatch -n _shtab_gpuwatch_using -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n _shtab_gpuwatch_using -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n _shtab_gpuwatch_using -l record -xka "(__fish_complete_path (commandline -ct))" -d 'record to FILE.gz or FILE.zst'
complete -c gpuwatch -n _shtab_gpuwatch_using -l record-size -x -d 'size at which FILE becomes an older part (default 256MiB; 0: never)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l record-keep -x -d 'number of older parts that are kept (default 8)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l record-commands -d 'record whole command lines (default: the names of programs)'
complete -c gpuwatch -n _shtab_gpuwatch_using -l anonymise -d 'record stand-ins for users, hosts, programs, paths and names'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a explain -d 'Show what a process declared, which GPUs it sees, and the evidence.'
complete -c gpuwatch -n '_shtab_gpuwatch_using explain' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using explain' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using explain' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using explain' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using explain' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a visible -d 'Show which GPUs a CUDA_VISIBLE_DEVICES value makes visible here.'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using visible' -l order -xka "PCI_BUS_ID FASTEST_FIRST" -d 'CUDA_DEVICE_ORDER (default: that of your environment)'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a pick -d 'Print GPUs that have room, for CUDA_VISIBLE_DEVICES.'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l share -x -d 'share of each GPU: 0.4 or 40%'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l memory -x -d 'memory of each GPU: 20GiB'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -s n -x -d 'how many GPUs (default 1)'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l max-util -x -d 'no GPU that is more than P percent busy'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l ignore-reservations -d 'ignore what others reserved, and print whose it is'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l only -x -d 'choose among these GPUs'
complete -c gpuwatch -n '_shtab_gpuwatch_using pick' -l index -d 'print indices of NVML instead of UUIDs'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a run -d 'Pick GPUs, set the share for every framework, start a program.'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l share -x -d 'share of each GPU: 0.4 or 40%'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l memory -x -d 'memory of each GPU: 20GiB'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -s n -x -d 'how many GPUs (default 1)'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l max-util -x -d 'no GPU that is more than P percent busy'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l ignore-reservations -d 'ignore what others reserved, and print whose it is'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l gpu -x -d 'these GPUs (default: auto, those with the most room)'
complete -c gpuwatch -n '_shtab_gpuwatch_using run' -l quiet -d 'do not print what was set'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a strays -d 'Your own processes that nobody attends to and that still hold memory, and why.'
complete -c gpuwatch -n '_shtab_gpuwatch_using strays' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using strays' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using strays' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using strays' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using strays' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a kill -d 'End your own processes, or a whole run, and report what became of them.'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l signal -xka "INT TERM KILL" -d 'INT, TERM or KILL (default: TERM)'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l job -d 'the whole run that it belongs to: launcher, ranks, workers'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l yes -d 'do not ask'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l allow-root-kill -d 'let root end processes: its own, under sudo those of the caller'
complete -c gpuwatch -n '_shtab_gpuwatch_using kill' -l read-only -d 'end nothing: refuse all'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a report -d 'How much each user held and used, from what gpuwatch has recorded.'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l recording -xka "(__fish_complete_path (commandline -ct))" -d 'read a recording instead; may be repeated'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l since -x -d 'how far back: 8h, 7d (default 7d; of a recording: all of it)'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l by -xka "user gpu job" -d 'user, gpu or job (default: user)'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l csv -d 'as CSV, a line a row'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l html -xka "(__fish_complete_path (commandline -ct))" -d 'as a page with charts, written to FILE'
complete -c gpuwatch -n '_shtab_gpuwatch_using report' -l file -xka "(__fish_complete_path (commandline -ct))" -d 'another file than your own'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a events -d 'Alerts that were raised and how they ended, from what gpuwatch has recorded.'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l recording -xka "(__fish_complete_path (commandline -ct))" -d 'read a recording instead; may be repeated'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l since -x -d 'how far back: 8h, 7d (default 24h; of a recording: all of it)'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l gpu -x -d 'about these GPUs alone'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l user -x -d 'about one user'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l rule -xka "XID data-stale dead-process-holds-memory gpu-health idle-but-held memory-near-limit memory-of-unknown-processes misspelt-variable opened-GPUs-it-does-not-use outside-visible-devices overbooked past-start-size power-at-limit row-remap temperature-near-slowdown throttled time-to-full uncorrected-ECC uses-more-than-declared" -d 'of one rule: '"'"'uses more than declared'"'"', or its beginning'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l file -xka "(__fish_complete_path (commandline -ct))" -d 'another store than your own'
complete -c gpuwatch -n '_shtab_gpuwatch_using events' -l follow -d 'go on with what is recorded, until interrupted'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a replay -d 'Show a recording in the dashboard: play it, and move to any time of it.'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -l at -x -d 'begin at this time: 03:10, 03:10:22, '"'"'2026-11-21 03:10'"'"''
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -l filter -x -d 'start with the processes that match'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay' -l theme -xka "dark light" -d 'dark (the default), light, or a theme of Textual: nord'
complete -c gpuwatch -n '_shtab_gpuwatch_using replay; and test $_shtab_gpuwatch_npos -ge 0' -ka "(__fish_complete_path (commandline -ct))" -d 'recordings, played as one; older parts are found'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a watch -d 'Monitor without a terminal: one line per event, messages.'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l events -xka "(__fish_complete_path (commandline -ct))" -d 'record the events in FILE instead of your own store'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l quiet -d 'print nothing but what goes wrong'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l interval -x -d 'time between two samples'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l only -x -d 'these GPUs alone'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l record -xka "(__fish_complete_path (commandline -ct))" -d 'record to FILE.gz or FILE.zst'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l record-size -x -d 'size at which FILE becomes an older part (default 256MiB; 0: never)'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l record-keep -x -d 'number of older parts that are kept (default 8)'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l record-commands -d 'record whole command lines (default: the names of programs)'
complete -c gpuwatch -n '_shtab_gpuwatch_using watch' -l anonymise -d 'record stand-ins for users, hosts, programs, paths and names'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a status -d 'One short line for the status bar of tmux.'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -l demo -d 'show a simulated machine instead of this one'
complete -c gpuwatch -n '_shtab_gpuwatch_using status' -l tmux -d 'with the colours of tmux'"'"'s status line'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a config -d 'Show, check or create a gpuwatch.toml.'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -l show -d 'every key, its value, and where it comes from'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -l init -d 'write a commented file; never over one that is there'
complete -c gpuwatch -n '_shtab_gpuwatch_using config' -l check -d 'read the files and list their mistakes'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a doctor -d 'Check the driver, permissions, terminal and files, and say how to mend what is wrong.'
complete -c gpuwatch -n '_shtab_gpuwatch_using doctor' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using doctor' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using doctor' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using doctor' -l json -d 'print JSON'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a docs -d 'Show the guide, one page per subject.'
complete -c gpuwatch -n '_shtab_gpuwatch_using docs' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using docs' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using docs' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using docs; and test $_shtab_gpuwatch_npos -eq 0' -ka "guide shares alerts configuration stream service recording shell python design security" -d 'such as guide or alerts (default: list the pages)'
complete -c gpuwatch -n '_shtab_gpuwatch_using; and test $_shtab_gpuwatch_npos -eq 0' -a completion -d 'Print the completions for a shell: bash, zsh, fish or tcsh.'
complete -c gpuwatch -n '_shtab_gpuwatch_using completion' -s h -l help -d 'show this help message and exit'
complete -c gpuwatch -n '_shtab_gpuwatch_using completion' -l config -xka "(__fish_complete_path (commandline -ct))" -d 'read FILE instead of your gpuwatch.toml'
complete -c gpuwatch -n '_shtab_gpuwatch_using completion' -l ascii -d 'print only ASCII characters'
complete -c gpuwatch -n '_shtab_gpuwatch_using completion; and test $_shtab_gpuwatch_npos -eq 0' -ka "bash zsh fish tcsh" -d 'bash, zsh, fish or tcsh'
