#compdef pinfold
# Completes pinfold in zsh; printed by: pinfold completion zsh
_pinfold() {
    local answer line word text directive
    local -a words_told suffix
    local program=${(Q)words[1]}
    (( $+commands[$program] )) || [[ -x ${~program} ]] || program=pinfold
    answer=$(${~program} __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null) || return 1
    for line in ${(f)answer}; do
        if [[ $line == :* ]]; then
            directive=${line#:}
            continue
        fi
        word=${line%%$'\t'*}
        text=${line#$word}
        words_told+=("${word//:/\\:}${text:+:${text#$'\t'}}")
    done
    case $directive in
    2 | 6 | 18) suffix=(-S '') ;;
    esac
    (( $#words_told )) && _describe -t words pinfold words_told "${suffix[@]}"
    # Of --option=FILE the file alone is completed.
    [[ $PREFIX == --*=* ]] && compset -P '*='
    case $directive in
    0 | 2) _files ;;
    16 | 18) _files -/ ;;
    esac
}
if [[ $funcstack[1] == _pinfold ]]; then
    _pinfold "$@"
else
    compdef _pinfold pinfold
fi
