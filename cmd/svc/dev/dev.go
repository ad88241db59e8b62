// Package dev is svc dev: it serves with a first tenant, its API key, a published sample
// agent, a sample workflow and a demo tool server, on one node or on several behind a load
// balancer, and prints calls to paste. The first tenant stays the same over restarts.
package dev

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
)

// MaxNodes is the greatest number of nodes on one machine.
const MaxNodes = 16

// Config is what svc dev needs of the service and its settings.
type Config struct {
	Version   string
	Addr      string // of the API; with several nodes, of the balancer
	LocalURL  string // of the API, as this machine reaches it
	PublicURL string
	DataDir   string
	RealModel bool   // a provider of real models is configured
	NoBrowser string // why browser skills are not available; empty: they are
	JSON      bool   // print the sample as JSON
	Out, Errs io.Writer
	Log       zerolog.Logger

	// Serve runs one node until ctx ends. It calls ready once the node answers.
	Serve func(ctx context.Context, ready func(context.Context) error) error
	// Manage runs work on the database of the running service.
	Manage func(ctx context.Context, work func(context.Context, *store.SystemStore) error) error

	// With several nodes.
	Nodes        int
	NodeEnv      []string // settings of every node, as the environment says them
	RedisURL     string   // empty: a Redis of its own
	DrainTimeout time.Duration
	// OpenDatabase makes the database of all nodes and its master key.
	OpenDatabase func(ctx context.Context) (*Database, error)
}

// Database is an open database.
type Database struct {
	URL, MasterKey string
	Close          func() error
}

// Run serves until ctx ends.
func Run(ctx context.Context, c *Config) error {
	kept, err := openSample(c.DataDir)
	if err != nil {
		return err
	}
	desk, err := openDesk(kept)
	if err != nil {
		return err
	}
	defer desk.close()
	office, err := openOffice(kept)
	if err != nil {
		return err
	}
	defer office.close()
	ready := func(ctx context.Context, nodes []string) error {
		if err := c.seed(ctx, kept, desk.url, office.url); err != nil {
			return err
		}
		kept.Nodes = nodes
		if c.JSON {
			return json.NewEncoder(c.Out).Encode(kept)
		}
		return kept.print(c)
	}
	if c.Nodes > 1 {
		return c.serveFleet(ctx, ready)
	}
	return c.Serve(ctx, func(ctx context.Context) error { return ready(ctx, nil) })
}
