# Completes pinfold in fish; printed by: pinfold completion fish
function __pinfold_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    command -q -- $program; or set program pinfold
    set -l answer ($program __complete $words[2..] (commandline -ct) 2>/dev/null)
    or return
    for line in $answer[1..-2]
        printf '%s\n' $line
    end
    switch $answer[-1]
        case :0 :2
            __fish_complete_path (commandline -ct)
        case :16 :18
            __fish_complete_directories (commandline -ct)
    end
end
complete -c pinfold -f -k -a '(__pinfold_complete)'
