package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/private"
)

// ownerWait is how long serve waits for the previous owner of a data directory
// to go away (house.md, Storage).
const ownerWait = 10 * time.Second

// storage is the way to the migrated database of this process.
type storage struct {
	url     string
	private *private.Server // nil with SVC_DATABASE_URL
}

// openStorage starts the private Postgres or takes the given one, and brings its
// schema up to date. A command of the management shares the Postgres of a
// running server; a server wants it alone. nodes is how many it will serve.
func openStorage(ctx context.Context, c *Config, log zerolog.Logger, share bool, nodes int) (*storage, error) {
	if c.DatabaseURL != "" {
		if err := migrate.Check(ctx, c.DatabaseURL); err != nil {
			return nil, fmt.Errorf("SVC_DATABASE_URL: %w", err)
		}
		if err := upgrade(ctx, c.DatabaseURL, log); err != nil {
			return nil, err
		}
		return &storage{url: c.DatabaseURL}, nil
	}
	server, err := private.Open(ctx, private.Config{DataDir: c.DataDir, Log: log, Wait: ownerWait, Share: share,
		Settings: map[string]string{"max_connections": strconv.Itoa(100 + (nodes-1)*nodeConns)}})
	if err != nil {
		return nil, err
	}
	s := &storage{url: server.URL(), private: server}
	if err := upgrade(ctx, s.url, log); err != nil {
		s.close(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

func upgrade(ctx context.Context, url string, log zerolog.Logger) error {
	applied, err := migrate.Up(ctx, url)
	if err != nil {
		return err
	}
	if len(applied) > 0 {
		log.Info().Strs("applied", applied).Msg("database schema is up to date")
	}
	return nil
}

// exclusive reports whether no other process can serve this database: we hold
// the lock of its data directory.
func (s *storage) exclusive() bool { return s.private != nil && s.private.Owner() }

func (s *storage) close(ctx context.Context) error {
	if s.private == nil {
		return nil
	}
	return s.private.Stop(ctx)
}
