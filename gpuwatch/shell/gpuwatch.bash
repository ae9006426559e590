# Generated from gpuwatch's parser by shtab (https://github.com/tqdm/shtab), copyright 2020-2026 Casper da Costa-Luis.
# This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0.
# If a copy of the MPL was not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
# Usage:
# 1) Copy this to somewhere (e.g. ~/.local/share/bash_completion/gpuwatch).
# 2) Add the following line to your .bashrc:
#    source ~/.local/share/bash_completion/gpuwatch
# See also: https://github.com/scop/bash-completion/blob/main/doc/configuration.md

_shtab_gpuwatch_subparsers=(explain visible pick run strays kill report events replay watch status config doctor docs completion)

_shtab_gpuwatch_explain_option_strings=(-h --help --config --ascii --json --demo)
_shtab_gpuwatch_visible_option_strings=(-h --help --config --ascii --json --demo --order)
_shtab_gpuwatch_pick_option_strings=(-h --help --config --ascii --json --demo --share --memory -n --max-util --ignore-reservations --only --index)
_shtab_gpuwatch_run_option_strings=(-h --help --config --ascii --share --memory -n --max-util --ignore-reservations --gpu --quiet)
_shtab_gpuwatch_strays_option_strings=(-h --help --config --ascii --json --demo)
_shtab_gpuwatch_kill_option_strings=(-h --help --config --ascii --signal --job --yes --allow-root-kill --read-only)
_shtab_gpuwatch_report_option_strings=(-h --help --config --ascii --json --recording --since --by --csv --html --file)
_shtab_gpuwatch_events_option_strings=(-h --help --config --ascii --json --recording --since --gpu --user --rule --file --follow)
_shtab_gpuwatch_replay_option_strings=(-h --help --config --ascii --at --filter --theme)
_shtab_gpuwatch_watch_option_strings=(-h --help --config --ascii --json --demo --events --quiet --interval --only --record --record-size --record-keep --record-commands --anonymise)
_shtab_gpuwatch_status_option_strings=(-h --help --config --ascii --json --demo --tmux)
_shtab_gpuwatch_config_option_strings=(-h --help --config --ascii --show --init --check)
_shtab_gpuwatch_doctor_option_strings=(-h --help --config --ascii --json)
_shtab_gpuwatch_docs_option_strings=(-h --help --config --ascii)
_shtab_gpuwatch_completion_option_strings=(-h --help --config --ascii)
_shtab_gpuwatch_option_strings=(-h --help --version --once --json --stream --recording --at --demo --only --user --mine --filter --interval --memory-warning --memory-critical --bell --read-only --allow-root-kill --wait --theme --ascii --config --record --record-size --record-keep --record-commands --anonymise)

_shtab_gpuwatch_explain___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_visible___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_pick___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_run___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_strays___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_kill___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_report___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_report___recording_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_report___html_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_report___file_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_events___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_events___recording_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_events___file_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_replay_pos_0_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_replay___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_watch___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_watch___events_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_watch___record_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_status___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_config___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_doctor___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_docs___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch_completion___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch___recording_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch___config_COMPGEN=_shtab_compgen_files
_shtab_gpuwatch___record_COMPGEN=_shtab_compgen_files

_shtab_gpuwatch_visible___order_choices=(PCI_BUS_ID FASTEST_FIRST)
_shtab_gpuwatch_kill___signal_choices=(INT TERM KILL)
_shtab_gpuwatch_report___by_choices=(user gpu job)
_shtab_gpuwatch_events___rule_choices=(XID data-stale dead-process-holds-memory gpu-health idle-but-held memory-near-limit memory-of-unknown-processes misspelt-variable opened-GPUs-it-does-not-use outside-visible-devices overbooked past-start-size power-at-limit row-remap temperature-near-slowdown throttled time-to-full uncorrected-ECC uses-more-than-declared)
_shtab_gpuwatch_replay___theme_choices=(dark light)
_shtab_gpuwatch_docs_pos_0_choices=(guide shares alerts configuration stream service recording shell python design security)
_shtab_gpuwatch_completion_pos_0_choices=(bash zsh fish tcsh)
_shtab_gpuwatch_pos_0_choices=(explain visible pick run strays kill report events replay watch status config doctor docs completion)
_shtab_gpuwatch___theme_choices=(dark light)

_shtab_gpuwatch_explain__h_nargs=0
_shtab_gpuwatch_explain___help_nargs=0
_shtab_gpuwatch_explain___ascii_nargs=0
_shtab_gpuwatch_explain___json_nargs=0
_shtab_gpuwatch_explain___demo_nargs=0
_shtab_gpuwatch_visible__h_nargs=0
_shtab_gpuwatch_visible___help_nargs=0
_shtab_gpuwatch_visible___ascii_nargs=0
_shtab_gpuwatch_visible___json_nargs=0
_shtab_gpuwatch_visible___demo_nargs=0
_shtab_gpuwatch_pick__h_nargs=0
_shtab_gpuwatch_pick___help_nargs=0
_shtab_gpuwatch_pick___ascii_nargs=0
_shtab_gpuwatch_pick___json_nargs=0
_shtab_gpuwatch_pick___demo_nargs=0
_shtab_gpuwatch_pick___ignore_reservations_nargs=0
_shtab_gpuwatch_pick___index_nargs=0
_shtab_gpuwatch_run__h_nargs=0
_shtab_gpuwatch_run___help_nargs=0
_shtab_gpuwatch_run___ascii_nargs=0
_shtab_gpuwatch_run___ignore_reservations_nargs=0
_shtab_gpuwatch_run___quiet_nargs=0
_shtab_gpuwatch_strays__h_nargs=0
_shtab_gpuwatch_strays___help_nargs=0
_shtab_gpuwatch_strays___ascii_nargs=0
_shtab_gpuwatch_strays___json_nargs=0
_shtab_gpuwatch_strays___demo_nargs=0
_shtab_gpuwatch_kill_pos_0_nargs=+
_shtab_gpuwatch_kill__h_nargs=0
_shtab_gpuwatch_kill___help_nargs=0
_shtab_gpuwatch_kill___ascii_nargs=0
_shtab_gpuwatch_kill___job_nargs=0
_shtab_gpuwatch_kill___yes_nargs=0
_shtab_gpuwatch_kill___allow_root_kill_nargs=0
_shtab_gpuwatch_kill___read_only_nargs=0
_shtab_gpuwatch_report__h_nargs=0
_shtab_gpuwatch_report___help_nargs=0
_shtab_gpuwatch_report___ascii_nargs=0
_shtab_gpuwatch_report___json_nargs=0
_shtab_gpuwatch_report___csv_nargs=0
_shtab_gpuwatch_events__h_nargs=0
_shtab_gpuwatch_events___help_nargs=0
_shtab_gpuwatch_events___ascii_nargs=0
_shtab_gpuwatch_events___json_nargs=0
_shtab_gpuwatch_events___follow_nargs=0
_shtab_gpuwatch_replay_pos_0_nargs=+
_shtab_gpuwatch_replay__h_nargs=0
_shtab_gpuwatch_replay___help_nargs=0
_shtab_gpuwatch_replay___ascii_nargs=0
_shtab_gpuwatch_watch__h_nargs=0
_shtab_gpuwatch_watch___help_nargs=0
_shtab_gpuwatch_watch___ascii_nargs=0
_shtab_gpuwatch_watch___json_nargs=0
_shtab_gpuwatch_watch___demo_nargs=0
_shtab_gpuwatch_watch___quiet_nargs=0
_shtab_gpuwatch_watch___record_commands_nargs=0
_shtab_gpuwatch_watch___anonymise_nargs=0
_shtab_gpuwatch_status__h_nargs=0
_shtab_gpuwatch_status___help_nargs=0
_shtab_gpuwatch_status___ascii_nargs=0
_shtab_gpuwatch_status___json_nargs=0
_shtab_gpuwatch_status___demo_nargs=0
_shtab_gpuwatch_status___tmux_nargs=0
_shtab_gpuwatch_config__h_nargs=0
_shtab_gpuwatch_config___help_nargs=0
_shtab_gpuwatch_config___ascii_nargs=0
_shtab_gpuwatch_config___show_nargs=0
_shtab_gpuwatch_config___init_nargs=0
_shtab_gpuwatch_config___check_nargs=0
_shtab_gpuwatch_doctor__h_nargs=0
_shtab_gpuwatch_doctor___help_nargs=0
_shtab_gpuwatch_doctor___ascii_nargs=0
_shtab_gpuwatch_doctor___json_nargs=0
_shtab_gpuwatch_docs__h_nargs=0
_shtab_gpuwatch_docs___help_nargs=0
_shtab_gpuwatch_docs___ascii_nargs=0
_shtab_gpuwatch_completion__h_nargs=0
_shtab_gpuwatch_completion___help_nargs=0
_shtab_gpuwatch_completion___ascii_nargs=0
_shtab_gpuwatch_pos_0_nargs=A...
_shtab_gpuwatch__h_nargs=0
_shtab_gpuwatch___help_nargs=0
_shtab_gpuwatch___version_nargs=0
_shtab_gpuwatch___once_nargs=0
_shtab_gpuwatch___json_nargs=0
_shtab_gpuwatch___stream_nargs=0
_shtab_gpuwatch___demo_nargs=0
_shtab_gpuwatch___mine_nargs=0
_shtab_gpuwatch___bell_nargs=0
_shtab_gpuwatch___read_only_nargs=0
_shtab_gpuwatch___allow_root_kill_nargs=0
_shtab_gpuwatch___wait_nargs=0
_shtab_gpuwatch___ascii_nargs=0
_shtab_gpuwatch___record_commands_nargs=0
_shtab_gpuwatch___anonymise_nargs=0


# $1=COMP_WORDS[1]
_shtab_compgen_files() {
  compgen -f -- $1  # files
}

# $1=COMP_WORDS[1]
_shtab_compgen_dirs() {
  compgen -d -- $1  # recurse into subdirs
}

# $1=COMP_WORDS[1]
_shtab_replace_nonword() {
  echo "${1//[^[:word:]]/_}"
}

# set default values (called for the initial parser & any subparsers)
_set_parser_defaults() {
  local subparsers_var="${prefix}_subparsers[@]"
  sub_parsers=${!subparsers_var-}

  local current_option_strings_var="${prefix}_option_strings[@]"
  current_option_strings=${!current_option_strings_var}

  completed_positional_actions=0

  _set_new_action "pos_$completed_positional_actions" true
}

# $1=action identifier
# $2=positional action (bool)
# set all identifiers for an action's parameters
_set_new_action() {
  current_action="${prefix}_$(_shtab_replace_nonword $1)"

  local current_action_compgen_var=${current_action}_COMPGEN
  current_action_compgen="${!current_action_compgen_var-}"

  local current_action_choices_var="${current_action}_choices[@]"
  current_action_choices="${!current_action_choices_var-}"

  local current_action_nargs_var="${current_action}_nargs"
  if [ -n "${!current_action_nargs_var-}" ]; then
    current_action_nargs="${!current_action_nargs_var}"
  else
    current_action_nargs=1
  fi

  current_action_args_start_index=$(( $word_index + 1 - $pos_only ))

  current_action_is_positional=$2
}

# Notes:
# `COMPREPLY`: what will be rendered after completion is triggered
# `completing_word`: currently typed word to generate completions for
# `${!var}`: evaluates the content of `var` and expand its content as a variable
#     hello="world"
#     x="hello"
#     ${!x} -> ${hello} -> "world"
_shtab_gpuwatch() {
  local completing_word="${COMP_WORDS[COMP_CWORD]}"
  local previous_word="${COMP_WORDS[COMP_CWORD-1]}"
  local completed_positional_actions
  local current_action
  local current_action_args_start_index
  local current_action_choices
  local current_action_compgen
  local current_action_is_positional
  local current_action_nargs
  local current_option_strings
  local sub_parsers
  COMPREPLY=()

  local prefix=_shtab_gpuwatch
  local word_index=0
  local pos_only=0 # "--" delimiter not encountered yet
  _set_parser_defaults
  word_index=1

  # determine what arguments are appropriate for the current state
  # of the arg parser
  while [ $word_index -ne $COMP_CWORD ]; do
    local this_word="${COMP_WORDS[$word_index]}"

    if [[ $pos_only = 1 || " $this_word " != " -- " ]]; then
      if [[ -n $sub_parsers && " ${sub_parsers[@]} " == *" $this_word "* ]]; then
        # valid subcommand: add it to the prefix & reset the current action
        prefix="${prefix}_$(_shtab_replace_nonword $this_word)"
        _set_parser_defaults
      fi

      if [[ " ${current_option_strings[@]} " == *" $this_word "* ]]; then
        # a new action should be acquired (due to recognised option string or
        # no more input expected from current action);
        # the next positional action can fill in here
        _set_new_action $this_word false
      fi

      if [[ "$current_action_nargs" != "*" ]] && \
         [[ "$current_action_nargs" != "+" ]] && \
         [[ "$current_action_nargs" != "?" ]] && \
         [[ "$current_action_nargs" != *"..." ]] && \
         (( $word_index + 1 - $current_action_args_start_index - $pos_only >= \
            $current_action_nargs )); then
        $current_action_is_positional && let "completed_positional_actions += 1"
        _set_new_action "pos_$completed_positional_actions" true
      fi
    else
      pos_only=1 # "--" delimiter encountered
    fi

    let "word_index+=1"
  done

  # Generate the completions

  COMPREPLY=()
  if [[ $pos_only = 0 && "$completing_word" == -* &&
        ( -z "$current_action_compgen" || "$current_action_is_positional" = true ) ]]; then
    # optional argument started: use option strings
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
      compgen -W "${current_option_strings[*]}" -- "$completing_word")
  elif [[ "$previous_word" =~ ^[0-9\&]*[\<\>]\>?$ ]]; then
    # handle redirection operators
    compopt -o filenames 2>/dev/null || : # bash>=4
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$completing_word")
  else
    # use choices & compgen
    local action_compgen_word="$completing_word"
    # handle tab-completing in the middle of a line (#248 <- #116)
    [[ -n "$current_action_compgen" && "$completing_word" == -* ]] && action_compgen_word=""
    [ -n "$current_action_compgen" ] && {
      [[ "$current_action_compgen" =~ _(file|dir|glob|FILE|DIR|GLOB)|File|Dir|Glob ]] &&
        compopt -o filenames 2>/dev/null || : # bash>=4
      while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        "$current_action_compgen" "$action_compgen_word")
    }
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
      compgen -W "${current_action_choices[*]}" -- "$completing_word")
  fi

  if [[ ${#COMPREPLY[@]} = 0 ]]; then
    # native fallback matches are not necessarily filenames (e.g. variables)
    compopt +o filenames 2>/dev/null || : # bash>=4
  fi

  return 0
}

complete -o bashdefault -F _shtab_gpuwatch gpuwatch
