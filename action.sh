# The steps of action.yml: annotate MODEL, compile it to OUTPUT by PASSES, verify it, and append the summary to the page
# of the job. A BatchNormalization that stays is a warning; a model that fails, or a deviation, fails the job.
set -u
irc check --passes "$PASSES" --format github -- "$MODEL"
said=$(irc compile --passes "$PASSES" --verify=end -o "$OUTPUT" -- "$MODEL" 2>&1)
status=$?
printf '### irc: %s\n\n```\n%s\n```\n' "$MODEL" "$said" >> "${GITHUB_STEP_SUMMARY:-/dev/stdout}"
printf '%s\n' "$said" >&2
exit "$status"
