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
    # Of --option=FILE the file alone is completed.
    set -l option (string match -r -- '^--[^=]*=' (commandline -ct))
    set -l file (string replace -r -- '^--[^=]*=' '' (commandline -ct))
    switch $answer[-1]
        case :0 :2
            printf "$option%s\n" (__fish_complete_path $file)
        case :16 :18
            printf "$option%s\n" (__fish_complete_directories $file)
    end
end
complete -c pinfold -f -k -a '(__pinfold_complete)'
