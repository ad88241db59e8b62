// Package private runs the Postgres of a node that was given none: a cluster in
// the data directory, reached over a unix socket only.
//
// It owns the directory <data>/postgres, the server process and the lock
// <data>/postgres.lock. Whoever holds the lock runs the server and stops it; a
// process that finds the lock held can only connect. The server dies with its
// owner: it is stopped by Stop, and by the parent-death signal when the owner is
// killed. What outlives a kill all the same is stopped by the next owner and
// never adopted. A server that dies by itself is started again.
//
// As root the server runs under an unprivileged user. If that user cannot reach
// the data directory, the cluster lies in /var/lib/svc/<hash>, and the file
// <data>/postgres.location names it.
package private
