package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/private"
)

// ownerWait is how long serve waits until the previous owner of a data directory has
// ended (docs/architecture.md, Storage).
const ownerWait = 10 * time.Second

// storage is the migrated database of this process.
type storage struct {
	url     string
	where   string          // names the database for people, without a password
	private *private.Server // nil with SVC_DATABASE_URL
}

// access says how a command uses the database.
type access struct {
	create bool // make the database and bring its schema up to date
	share  bool // use the private Postgres of a running server
	nodes  int  // how many nodes the private Postgres serves
}

var (
	serving  = access{create: true, nodes: 1}
	migrates = access{create: true, share: true, nodes: 1}
	// managing is the access of every other command. It never creates data, so that a
	// wrong directory or address is an error and not a new, empty database.
	managing = access{share: true, nodes: 1}
)

// errNoDatabase says where the command looked and how to create a database.
type errNoDatabase struct{ where, wants string }

func (e errNoDatabase) Error() string {
	return fmt.Sprintf("there is no data of this service in %s: %s, or start it once with svc serve, svc dev or svc migrate", e.where, e.wants)
}

// openStorage starts the private Postgres or takes the given one. With a.create it
// makes the database and brings its schema up to date; without it, a database that
// does not exist or whose schema is behind is an error.
func openStorage(ctx context.Context, c *Config, log zerolog.Logger, a access) (*storage, error) {
	if c.DatabaseURL != "" {
		if err := migrate.Check(ctx, c.DatabaseURL); err != nil {
			return nil, fmt.Errorf("SVC_DATABASE_URL: %w", err)
		}
		s := &storage{url: c.DatabaseURL, where: pg.Describe(c.DatabaseURL)}
		return s, s.prepare(ctx, log, a, "correct SVC_DATABASE_URL")
	}
	forgetClientVariables()
	server, err := private.Open(ctx, private.Config{DataDir: c.DataDir, Log: log, Wait: ownerWait, Share: a.share, Existing: !a.create,
		Settings: map[string]string{"max_connections": strconv.Itoa(100 + (a.nodes-1)*nodeConns)}})
	if errors.Is(err, private.ErrNoData) {
		return nil, errNoDatabase{absolute(c.DataDir), "set SVC_DATA_DIR or SVC_DATABASE_URL as the server has it"}
	}
	if err != nil {
		return nil, err
	}
	s := &storage{url: server.URL(), private: server, where: "the private Postgres of " + absolute(c.DataDir)}
	if err := s.prepare(ctx, log, a, "set SVC_DATA_DIR or SVC_DATABASE_URL as the server has it"); err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// prepare brings the schema up to date; without a.create it returns an error if it is not.
func (s *storage) prepare(ctx context.Context, log zerolog.Logger, a access, wants string) error {
	if a.create {
		return upgrade(ctx, s.url, log)
	}
	switch version, err := migrate.Version(ctx, s.url); {
	case err != nil:
		return err
	case version == 0:
		return errNoDatabase{s.where, wants}
	case version < migrate.Latest():
		return fmt.Errorf("the schema of %s has version %d and this svc needs %d: run svc migrate, or start this version of the server", s.where, version, migrate.Latest())
	}
	return nil
}

func upgrade(ctx context.Context, url string, log zerolog.Logger) error {
	applied, err := migrate.UpBehind(ctx, url, func() { log.Warn().Msg("another process migrates the database; waiting") })
	if err != nil {
		return err
	}
	if len(applied) > 0 {
		log.Info().Strs("applied", applied).Msg("database schema is up to date")
	}
	return nil
}

// absolute returns path as an absolute path if it can.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// exclusive reports whether no other process can serve this database, because we hold the
// lock of its data directory.
func (s *storage) exclusive() bool { return s.private != nil && s.private.Owner() }

func (s *storage) close(ctx context.Context) error {
	if s.private == nil {
		return nil
	}
	return s.private.Stop(ctx)
}
