# Completes pinfold in bash 4.4 and newer; printed by: pinfold completion bash
_pinfold() {
    local program=$1 answer directive line
    COMPREPLY=()
    command -v -- "$program" >/dev/null 2>&1 || program=pinfold
    answer=$("$program" __complete-line "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null) || return
    directive=${answer##*:}
    while IFS= read -r line; do
        [[ $line == :* || -z $line ]] || COMPREPLY+=("${line%%$'\t'*}")
    done <<<"$answer"
    case $directive in
    2 | 6) compopt -o nospace ;;
    esac
    case $directive in
    0 | 2)
        compopt -o filenames
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$2")
        ;;
    16 | 18)
        compopt -o filenames
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$2")
        ;;
    esac
}
complete -F _pinfold pinfold
