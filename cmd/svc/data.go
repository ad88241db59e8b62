package main

import (
	"context"
	"fmt"
	"time"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
)

// data is the part of a node that keeps: the database, the master keys and the files.
type data struct {
	self      id.MemberID // this process
	pools     pools
	keys      *vault.Vault
	tables    *store.Store
	reads     *engine.Store
	sweeps    *feed.Sweep
	users     *store.Directory
	blobs     *blob.Store
	exclusive bool // no other process can serve this database
}

func (s *service) openData(ctx context.Context) error {
	st, err := openStorage(ctx, s.c, s.log, serving)
	if err != nil {
		return err
	}
	s.onStop(st.close)
	s.exclusive = st.exclusive()
	if err := s.openPools(ctx, st.url); err != nil {
		return err
	}
	if s.keys, err = unlock(ctx, s.c, s.pools.system, true); err != nil {
		return err
	}
	s.tables, s.reads = store.New(s.pools.api, s.keys), engine.New(s.pools.system)
	s.sweeps, s.users = feed.NewSweep(s.pools.system), store.NewDirectory(s.pools.system)
	s.self = id.MemberID{UUID: id.NewAnywhere()}
	if s.blobs, err = openFiles(ctx, s.c.Files, s.c.spool(), s.self.String()); err != nil {
		return fmt.Errorf("open the store of files: %w", err)
	}
	s.onStop(func(context.Context) error { return s.blobs.Close() })
	return filesThere(ctx, s.c.Files, s.blobs, s.pools.system)
}

// Connections of a node.
const (
	apiConns    = 16
	systemConns = 9 // one of /readyz
	leaseConns  = 4 // one in use; a server that hangs holds the others until they are given up
	writerConns = 6 // five of the journal, one of the outbox

	nodeConns = apiConns + systemConns + leaseConns + writerConns
)

// pools are the connections to the database under their roles. The lease has its own, so
// that no number of reads delays a node's beat.
type pools struct{ api, system, writer, lease *pg.Pool }

func (s *service) openPools(ctx context.Context, url string) error {
	gate := new(pg.Gate)
	for _, o := range []struct {
		to *(*pg.Pool)
		pg.Options
	}{
		{&s.pools.api, pg.Options{Role: pg.API, MaxConns: apiConns, AppName: "svc api"}},
		{&s.pools.system, pg.Options{Role: pg.System, MaxConns: systemConns, AppName: "svc actors"}},
		{&s.pools.writer, pg.Options{Role: pg.System, MaxConns: writerConns, Writer: true, AppName: "svc writer"}},
		{&s.pools.lease, pg.Options{Role: pg.System, MaxConns: leaseConns, AppName: "svc lease"}},
	} {
		o.Gate = gate
		pool, err := pg.Open(ctx, url, o.Options)
		if err != nil {
			return err
		}
		*o.to = pool
		s.onStop(func(ctx context.Context) error {
			if !closePool(ctx, pool) {
				stat := pool.Stat()
				s.log.Warn().Str("pool", o.AppName).Int32("in_use", stat.AcquiredConns()).Int32("open", stat.TotalConns()).Msg("connections to the database have not ended in time")
			}
			return nil
		})
	}
	return nil
}

// closeTime limits the wait for the connections of one pool to end. Nothing that they could still do matters to a
// node that has stopped.
const closeTime = time.Second

// closePool waits for a pool's connections to end and reports whether they have. A server that hangs ends none.
func closePool(ctx context.Context, pool *pg.Pool) bool {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
	}
}
