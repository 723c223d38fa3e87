#!/bin/sh
# Prints the name of Chromium or Chrome on PATH, which `make pages` looks at the site with. Installs one where there is
# none, which takes the system's package manager, and root or a sudo that asks for no password.
set -u

find_browser() {
    for name in chromium chromium-browser google-chrome-stable google-chrome; do
        if command -v "$name" >/dev/null; then printf '%s\n' "$name" && return; fi
    done
    return 1
}

find_browser && exit

sudo=
if [ "$(id -u)" -ne 0 ]; then sudo='sudo -n'; fi
echo "No Chromium found: installing one" >&2
if command -v apt-get >/dev/null; then
    $sudo apt-get update >&2
    $sudo apt-get install -y --no-install-recommends chromium fonts-dejavu-core >&2 </dev/null
elif command -v dnf >/dev/null; then
    $sudo dnf install -y chromium >&2 </dev/null
fi
find_browser && exit
echo "Chromium or Chrome is needed on PATH to look at the pages, and none could be installed." >&2
exit 1
