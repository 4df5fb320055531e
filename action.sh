# The steps of action.yml: annotate MODEL, compile it to OUTPUT by PASSES, verify it, and append the summary to the page
# of the job, and to the pull request if GH_TOKEN is given. A BatchNormalization that stays is a warning; a model that fails, or a deviation, fails the job.
set -u
irc check --passes "$PASSES" --format github -- "$MODEL"
said=$(irc compile --passes "$PASSES" --verify=end -o "$OUTPUT" -- "$MODEL" 2>&1)
status=$?
summary=$(printf '### irc: %s\n\n```\n%s\n```' "$MODEL" "$said")
printf '%s\n' "$summary" >> "${GITHUB_STEP_SUMMARY:-/dev/stdout}"
if [ -n "${GH_TOKEN:-}" ] && [ -n "${PULL_REQUEST:-}" ]; then
  gh pr comment "$PULL_REQUEST" --body "$summary" || echo "::warning title=irc::the summary could not be posted"
fi
printf '%s\n' "$said" >&2
exit "$status"
