package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/cmd/svc/dev"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/transport/egress"
)

// loopback is what svc dev may reach in addition to public addresses: the tool servers
// of a first look are on this machine.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "a first look: serve with a tenant, a key, a sample agent and a sample workflow, and calls to paste",
		Args:  cobra.NoArgs,
	}
	var c Config
	c.bind(cmd.Flags())
	nodes := cmd.Flags().Int("nodes", 1, "number of nodes, each a process on this machine, with a Redis and a load balancer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(cmd.Flags(), environment); err != nil {
			return err
		}
		switch {
		case c.Production:
			return errors.New("svc dev is for development: unset SVC_ENV, or use svc serve")
		case *nodes < 1 || *nodes > dev.MaxNodes:
			return fmt.Errorf("--nodes: must be 1 to %d", dev.MaxNodes)
		case c.ClusterAddr != "":
			return errors.New("svc dev makes its own cluster with --nodes: unset SVC_CLUSTER_ADDR, or use svc serve")
		case *nodes > 1 && c.MetricsAddr != "":
			return errors.New("--nodes: several nodes cannot share SVC_METRICS_ADDR: unset it, and each node has /metrics on its own address")
		}
		if err := c.reachable(); err != nil {
			return err
		}
		if len(c.OutboundAllow) == 0 {
			c.OutboundAllow = loopback
		}
		if !cmd.Flags().Changed("log-level") && os.Getenv("SVC_LOG_LEVEL") == "" {
			c.LogLevel = zerolog.WarnLevel // the output is the calls to paste
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			return dev.Run(cmd.Context(), c.dev(cmd, *nodes))
		})(cmd, nil)
	}
	return cmd
}

// dev joins svc dev with the service.
func (c *Config) dev(cmd *cobra.Command, nodes int) *dev.Config {
	log := newLog(c)
	return &dev.Config{
		Version: version, Addr: c.Addr, LocalURL: "http://" + dialable(c.Addr), PublicURL: c.PublicURL, DataDir: c.DataDir,
		RealModel: c.OpenAIKey != "" || c.AnthropicKey != "", NoBrowser: c.noBrowser(log),
		JSON: cli.WantsJSON(cmd), Out: cmd.OutOrStdout(), Errs: cmd.ErrOrStderr(), Log: log,
		Serve: func(ctx context.Context, ready func(context.Context) error) error { return serve(ctx, c, log, ready) },
		Manage: func(ctx context.Context, work func(context.Context, *store.SystemStore) error) error {
			return withDatabase(ctx, c, managing, func(ctx context.Context, _ string, pool *pg.Pool) error {
				keys, err := unlock(ctx, c, pool, false)
				if err != nil {
					return err
				}
				return work(ctx, store.System(pool, keys))
			})
		},
		Nodes: nodes, RedisURL: c.RedisURL, DrainTimeout: c.DrainTimeout,
		NodeEnv: append(c.given(cmd.Flags()), "SVC_DATA_DIR="+c.DataDir, "SVC_PUBLIC_URL="+c.PublicURL, "SVC_OUTBOUND_ALLOW="+joinPrefixes(c.OutboundAllow),
			"SVC_LOG_LEVEL="+c.LogLevel.String(), "SVC_LOG_FORMAT="+c.LogFormat),
		OpenDatabase: func(ctx context.Context) (*dev.Database, error) { return openShared(ctx, c, nodes, log) },
	}
}

// noBrowser returns why browser skills are not available on this machine, "" if they are. It starts
// nothing.
func (c *Config) noBrowser(log zerolog.Logger) string {
	b, err := openBrowser(c, egress.New(egress.Config{}), log)
	if err == nil {
		err = b.Available()
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// openShared opens the database of several nodes. It makes the master key of a new
// database, which the nodes share, and refuses a key that does not open the database.
func openShared(ctx context.Context, c *Config, nodes int, log zerolog.Logger) (_ *dev.Database, err error) {
	st, err := openStorage(ctx, c, log, access{create: true, nodes: nodes})
	if err != nil {
		return nil, err
	}
	closed := func() error {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		return st.close(stopping)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closed())
		}
	}()
	pool, err := pg.Open(ctx, st.url, pg.Options{Role: pg.System, MaxConns: 1, AppName: "svc dev"})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if _, err := unlock(ctx, c, pool, true); err != nil {
		return nil, err
	}
	key := c.MasterKey
	if key == "" {
		text, err := os.ReadFile(vault.KeyFile(c.DataDir))
		if err != nil {
			return nil, err
		}
		key = strings.TrimSpace(string(text))
	}
	return &dev.Database{URL: st.url, MasterKey: key, Close: closed}, nil
}
