// Package private runs the Postgres of a node without SVC_DATABASE_URL: a cluster in the data
// directory, reached only over a unix socket.
//
// It owns the directory <data>/postgres, the server process and two locks: <data>/postgres.lock,
// and one in the directory of the cluster, which copies of the data directory may share. The
// holder of both runs the server and stops it; a process that finds one held can only connect. The server dies with its owner: Stop stops it, and
// the parent-death signal if the owner is killed. A server that survives nevertheless is
// stopped by the next owner and never adopted. A server that dies unexpectedly is started
// again.
//
// As root the server runs under an unprivileged user. If that user cannot reach the data
// directory, the cluster lies in /var/lib/svc/<hash>, and the file <data>/postgres.location
// names it. The file owner in the cluster's directory names the data directory in turn, so that a copy of
// that is not taken for the original.
package private
