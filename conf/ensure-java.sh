#!/bin/sh
# Prints the home of a Java 17+ runtime, which Spark needs. Installs one where there is none.
#
# It looks at $JAVA_HOME, at `java` on PATH, then in JVM_DIRS. Installing takes the system's package
# manager, and root or a sudo that asks for no password; without these, it says which command to run.
# Only the home goes to stdout, so that a caller can write: JAVA_HOME="$(sh conf/ensure-java.sh)"
set -u

# Patterns, matched when they are used: Linux, then Homebrew on Apple and on Intel processors.
JVM_DIRS=${JVM_DIRS-"/usr/lib/jvm/* /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk*"}

print_home_if_recent() {  # COMMAND. It is run, because macOS and pyenv-like tools put stubs on PATH.
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$properties" | sed -n 's/^ *java\.specification\.version = //p')
    [ "${version%%.*}" -ge 17 ] 2>/dev/null || return 1  # Java 8 calls itself 1.8
    printf '%s\n' "$properties" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then print_home_if_recent "$JAVA_HOME/bin/java" && return; fi
    print_home_if_recent java && return
    for dir in $JVM_DIRS; do print_home_if_recent "$dir/bin/java" && return; done
    return 1
}

find_java && exit

fail() {
    printf 'Spark needs Java 17 or newer, and none was found. %s\n' "$1" >&2
    exit 1
}

manager=
for candidate in apt-get dnf yum apk pacman zypper brew; do
    if command -v "$candidate" >/dev/null; then manager=$candidate && break; fi
done

# The first package that the system's release knows is taken: newer releases drop Java 17.
case $manager in
    apt-get) install='apt-get install -y --no-install-recommends' packages='openjdk-17-jre-headless openjdk-21-jre-headless' ;;
    dnf | yum) install="$manager install -y" packages='java-17-openjdk-headless java-21-openjdk-headless java-17-amazon-corretto-headless' ;;
    apk) install='apk add --no-cache' packages='openjdk17-jre-headless openjdk21-jre-headless' ;;
    pacman) install='pacman -Sy --noconfirm' packages='jre17-openjdk-headless jre21-openjdk-headless' ;;
    zypper) install='zypper --non-interactive install' packages='java-17-openjdk-headless java-21-openjdk-headless' ;;
    brew) install='brew install' packages='openjdk@17' ;;
    *) fail 'Install one, for example from https://adoptium.net, and set JAVA_HOME to its folder.' ;;
esac

sudo=
if [ "$manager" != brew ] && [ "$(id -u)" -ne 0 ]; then sudo='sudo '; fi
update=
if [ "$manager" = apt-get ]; then update="${sudo}apt-get update && "; fi
advice="Install it with:

    $update$sudo$install ${packages%% *}
"
if [ "${packages#* }" != "$packages" ]; then advice="$advice
(where your release does not have that package: ${packages#* })"; fi

if [ -n "$sudo" ]; then
    sudo -n true 2>/dev/null || fail "$advice"
    sudo='sudo -n '
fi
echo "No Java 17 or newer found: installing one with $manager" >&2
if [ "$manager" = apt-get ]; then ${sudo}apt-get update >&2; fi  # a broken extra repository is no obstacle
for package in $packages; do
    if $sudo$install "$package" >&2 </dev/null; then break; fi
done
find_java || fail "$advice"
