# What both forms of the demo say and how. Sourced.
if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' PLAIN=$'\e[0m'; else BOLD= DIM= RED= PLAIN=; fi
BEGUN=$EPOCHREALTIME
TIMES=()

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
heading() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }
say() { printf '  %s\n' "$*"; }
# What a command prints, set off.
show() { sed "s/^/  ${DIM}|${PLAIN} /"; }
die() { printf '%sdemo: %s%s\n' "$RED" "$*" "$PLAIN" >&2; exit 1; }

# step TITLE COMMAND...: a heading, the command, how long it took. A command that fails ends the demo.
step() {
  local title=$1 start=$EPOCHREALTIME took; shift
  heading "$title"
  "$@" || die "$title: failed"
  took=$(since "$start")
  printf '  %s%s s%s\n' "$DIM" "$took" "$PLAIN"
  TIMES+=("$(printf '%8s s  %s' "$took" "$title")")
}

# command LINE...: prints a command as it would be typed, and runs it.
run() { printf '  %s$ %s%s\n' "$DIM" "$*" "$PLAIN"; "$@"; }

# slowly COMMAND...: a long command, with a sign of life every five seconds; its output only when it fails.
slowly() {
  local log pid n=0 rc
  log=$(mktemp)
  "$@" > "$log" 2>&1 < /dev/null & pid=$!
  while kill -0 $pid 2> /dev/null; do
    sleep 0.2; n=$((n + 1))
    [ $((n % 25)) != 0 ] || printf '  ... %d s: %s\n' $((n / 5)) "$(tail -n1 "$log" | cut -c1-90)"
  done
  wait $pid; rc=$?
  [ $rc = 0 ] || { tail -n 25 "$log" | show; }
  rm -f "$log"; return $rc
}

# The program to show: the release build where there is one, else a build for a first try, in a fraction of the time.
if [ -z "${VELLUM-}" ]; then
  PROFILE=try FEATURES=${FEATURES---no-default-features}
  [ ! -x "$HERE/target/release/vellum" ] || PROFILE=release FEATURES=
  VELLUM=$HERE/target/$PROFILE/vellum
fi

# build_vellum: builds that program, and says every five seconds how far it is.
build_vellum() {
  local log pid n=0 rc total done start=$EPOCHREALTIME
  total=$(cargo tree --locked --package vellum $FEATURES --edges normal,build --prefix none --format '{p}' 2> /dev/null | sort -u | wc -l)
  log=$(mktemp)
  cargo build --profile "$PROFILE" --locked --package vellum $FEATURES > "$log" 2>&1 < /dev/null & pid=$!
  while kill -0 $pid 2> /dev/null; do
    sleep 0.2; n=$((n + 1))
    [ $((n % 25)) = 0 ] || continue
    done=$(grep -c '^ *Compiling ' "$log")
    awk -v took="$(since "$start")" -v built="$done" -v total="$total" 'BEGIN {
      if (built > total) built = total
      bar = sprintf("%*s", built * 30 / (total + 1), ""); gsub(/ /, "#", bar)
      # The last crates are the largest ones.
      left = built > 20 ? sprintf(", some %d s left", took * (1.4 * total / built - 1) + 1) : ""
      printf "  [%-30s] %d of %d crates after %d s%s\n", bar, built, total, took, left }'
  done
  wait $pid; rc=$?
  [ $rc = 0 ] || { tail -n 25 "$log" | show; }
  rm -f "$log"; return $rc
}

summary() {
  heading "How long it took"
  printf '%s\n' "${TIMES[@]}"
  printf '%8s s  everything\n' "$(since "$BEGUN")"
}
