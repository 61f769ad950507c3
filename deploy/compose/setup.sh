#!/bin/sh
# Makes what `docker compose up` needs and nobody else may know: random secrets, and .env with the settings.
# What is there already is kept: it can be run again, and after an upgrade that needs one secret more.
set -eu
cd "${1:-$(dirname "$0")/../..}"
secrets=deploy/compose/secrets
umask 077
mkdir -p "$secrets"
# Containers run as users of their own, and see the files with the modes that they have here: everyone may
# read them, and nobody else may enter the folder.
chmod 700 "$secrets"

random() { LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c "$1"; }
keep() {
    if [ -s "$secrets/$1" ]; then
        cat >/dev/null
    else
        cat >"$secrets/$1.new"
        chmod 444 "$secrets/$1.new"
        mv "$secrets/$1.new" "$secrets/$1"
        echo "made $secrets/$1"
    fi
}
of() { cat "$secrets/$1"; }
# Prometheus and Alertmanager know passwords as bcrypt alone, which perl asks this system's crypt for. Where
# there is none that can (macOS), the image does that the others are built on.
hasher='chomp(my $password = <STDIN>); print crypt($password, $ARGV[0])'
bcrypt() {
    salt="\$2b\$10\$$(random 21)."
    made=$(of "$1" | perl -e "$hasher" "$salt" 2>/dev/null) || made=
    case $made in
    "$salt"*) ;;
    *) made=$(of "$1" | docker run --rm -i --network=none "${PYTHON_IMAGE:-python:3.12.13-slim-bookworm}" \
        perl -e "$hasher" "$salt") || made= ;;
    esac
    case $made in
    "$salt"*) printf %s "$made" ;;
    *)
        echo "setup.sh: no bcrypt of $1: install perl, or start Docker, and run this again" >&2
        return 1
        ;;
    esac
}

random 32 | keep postgres_password
printf 'postgresql://inflight:%s@postgres:5432/inflight' "$(of postgres_password)" | keep store_url
random 32 | keep redis_password
printf 'redis://:%s@redis:6379/0' "$(of redis_password)" | keep redis_url
hash=$(of redis_password | sha256sum | cut -d' ' -f1)
# What routers do there, and no more; files of earlier versions allowed everything, or not enough.
if [ -e "$secrets/redis_acl" ] && { grep -q '+@all' "$secrets/redis_acl" ||
    ! grep -q '+xadd' "$secrets/redis_acl"; }; then rm -f "$secrets/redis_acl"; fi
allowed='+auth +hello +ping +select +set +del +mget +sadd +srem +smembers +pexpire +exists'
allowed="$allowed +xadd +xrange +xrevrange +xread"
printf 'user default on #%s resetchannels ~inflight:* -@all %s\n' "$hash" "$allowed" | keep redis_acl
random 40 | keep triton_secret
head -c 32 /dev/urandom | keep pepper
random 24 | keep grafana_password
if [ ! -s "$secrets/prometheus_password" ]; then rm -f "$secrets/prometheus_web"; fi
random 32 | keep prometheus_password
if [ ! -s "$secrets/prometheus_web" ]; then
    hashed=$(bcrypt prometheus_password)
    printf "basic_auth_users:\n  inflight: '%s'\n" "$hashed" | keep prometheus_web
fi
printf 'ik-%s-%s' "$(random 8)" "$(random 40)" | keep admin_key
printf 'ik-%s-%s' "$(random 8)" "$(random 40)" | keep metrics_key
# Lasts 30 days from its first use by a router: delete it and run this again for a new one.
printf 'ik-%s-%s' "$(random 8)" "$(random 40)" | keep loadtest_key
random 24 | keep locust_password

# For models by address: empty until somebody needs them.
for name in hf_token aws_credentials; do
    if [ ! -e "$secrets/$name" ]; then
        (umask 077 && : >"$secrets/$name" && chmod 444 "$secrets/$name")
    fi
done
# With SELinux, containers read only what is labelled for them. Compose does that where a mount has :z, and
# cannot be told to for secrets.
if command -v selinuxenabled >/dev/null && selinuxenabled; then
    chcon -R -t container_file_t -l s0 "$secrets"
fi
# What is mounted is read by other users; a checkout may have been made for this one alone.
for mounted in deploy/compose/inflight.toml deploy/compose/redis.conf deploy/compose/models deploy/prometheus \
    deploy/grafana; do
    if [ -O "$mounted" ]; then chmod -R a+rX "$mounted"; fi
done

if [ ! -e .env ]; then
    cp deploy/compose/env.example .env
    echo "made .env: the model, the ports and the sizes are in it"
fi
echo "Now: docker compose up -d    (without a GPU: docker compose --profile cpu up -d)"
