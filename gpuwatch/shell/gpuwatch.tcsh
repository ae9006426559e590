# Generated from gpuwatch's parser by shtab (https://github.com/tqdm/shtab), copyright 2020-2026 Casper da Costa-Luis.
# This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0.
# If a copy of the MPL was not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
# Usage:
# 1) Copy this to somewhere (e.g. ~/.local/share/tcsh_completion/gpuwatch).
# 2) Add the following line to your .cshrc or .tcshrc:
#    source ~/.local/share/tcsh_completion/gpuwatch
# See also: https://github.com/tcsh-org/tcsh/blob/master/complete.tcsh



complete gpuwatch \
        'c/--recording=/f/' \
        'c/--theme=/(dark light)/' \
        'c/--config=/f/' \
        'c/--record=/f/' \
        'c/--order=/(PCI_BUS_ID FASTEST_FIRST)/' \
        'c/--signal=/(INT TERM KILL)/' \
        'c/--by=/(user gpu job)/' \
        'c/--html=/f/' \
        'c/--file=/f/' \
        'c/--rule=/(XID data-stale dead-process-holds-memory gpu-health idle-but-held memory-near-limit memory-of-unknown-processes misspelt-variable opened-GPUs-it-does-not-use outside-visible-devices overbooked past-start-size power-at-limit row-remap temperature-near-slowdown throttled time-to-full uncorrected-ECC uses-more-than-declared)/' \
        'c/--events=/f/' \
        'c/--/(allow-root-kill anonymise ascii at bell by check config csv demo events file filter follow gpu help html ignore-reservations index init interval job json max-util memory memory-critical memory-warning mine once only order quiet read-only record record-commands record-keep record-size recording rule share show signal since stream theme tmux user version wait yes)/' \
        'c/-/(- h n)/' \
        'n/--recording/f/' \
        'n/--theme/(dark light)/' \
        'n/--config/f/' \
        'n/--record/f/' \
        'n/--order/(PCI_BUS_ID FASTEST_FIRST)/' \
        'n/--signal/(INT TERM KILL)/' \
        'n/--by/(user gpu job)/' \
        'n/--html/f/' \
        'n/--file/f/' \
        'n/--rule/(XID data-stale dead-process-holds-memory gpu-health idle-but-held memory-near-limit memory-of-unknown-processes misspelt-variable opened-GPUs-it-does-not-use outside-visible-devices overbooked past-start-size power-at-limit row-remap temperature-near-slowdown throttled time-to-full uncorrected-ECC uses-more-than-declared)/' \
        'n/--events/f/' \
        'p/1/(explain visible pick run strays kill report events replay watch status config doctor docs completion)/' \
        'n/replay/f/' \
        'n/docs/(guide shares alerts configuration stream service recording shell python design security)/' \
        'n/completion/(bash zsh fish tcsh)/' \
        'p/*/()/'
