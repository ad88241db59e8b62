package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// stopTime is how long a node may take to end once its work in flight is finished, or
// SVC_DRAIN_TIMEOUT after SIGTERM has passed (security.md, invariant 21: 10 s in all).
const stopTime = 9 * time.Second

// edgeStopTime is the part of it for the edge, so that the lease can be given back: a
// request may wait for a tool server for 15 s. A request that waits for an owner,
// 3.5 s at most, is still answered.
const edgeStopTime = 6 * time.Second

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "run a node", Args: cobra.NoArgs}
	var c Config
	c.bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(cmd.Flags(), environment); err != nil {
			return err // wrong use: before anything was started
		}
		if err := c.reachable(); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), &c, newLog(&c), nil)
		})(cmd, nil)
	}
	return cmd
}

// serve runs a node until ctx ends or the node is fenced. It calls ready, unless nil, once
// the node answers.
func serve(ctx context.Context, c *Config, log zerolog.Logger, ready func(context.Context) error) error {
	warn(c, log)
	s, err := newService(ctx, c, log)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- s.listen() }()
	var latest time.Time // by when the node must have stopped; zero unless it was told to stop
	if ready != nil {
		err = ready(ctx)
	}
	if err == nil {
		select {
		case <-ctx.Done():
			latest = time.Now().Add(c.DrainTimeout + stopTime)
			s.finish(context.WithoutCancel(ctx), c.DrainTimeout)
		case <-s.fenced:
			err = s.why
		case err = <-failed:
		}
	}
	end := time.Now().Add(stopTime)
	if !latest.IsZero() && latest.Before(end) {
		end = latest
	}
	stopping, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	return errors.Join(err, s.stop(stopping))
}

// warn logs settings that are probably mistakes: unknown variables, and a public address
// that only this machine can reach or whose browsers keep no session.
func warn(c *Config, log zerolog.Logger) {
	for _, text := range strangers(os.Environ()) {
		log.Warn().Str("variable", text).Msg("an environment variable is ignored")
	}
	if c.Production && c.onlyLocal() {
		log.Warn().Str("public_url", c.PublicURL).Msg("SVC_PUBLIC_URL leads clients on other machines to themselves")
	} else if c.Production && strings.HasPrefix(c.PublicURL, "http:") {
		log.Warn().Str("public_url", c.PublicURL).Msg("SVC_PUBLIC_URL is not https: browsers return no secure cookie to it, so people cannot sign in to the console")
	}
}

// finish hands the node's work to the other nodes and finishes the model turns and tool
// calls in flight, for the given time at most. It ends at once at a second signal, or when
// another process declares this one dead.
func (s *service) finish(ctx context.Context, within time.Duration) {
	begun := time.Now()
	ctx, forget := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer forget()
	go func() {
		select {
		case <-s.fenced:
			forget()
		case <-ctx.Done():
		}
	}()
	s.log.Info().Msg("stopping: work in flight is finished; a second signal cuts it")
	s.drain(true)
	s.mesh.leave(ctx, s.pools.lease, s.node)
	bounded, cancel := context.WithDeadline(ctx, begun.Add(within))
	defer cancel()
	if err := s.node.Finish(bounded); err != nil {
		s.log.Warn().Int64("waited_ms", time.Since(begun).Milliseconds()).Msg("work in flight is cut")
		return
	}
	s.log.Info().Int64("waited_ms", time.Since(begun).Milliseconds()).Msg("no work is in flight any more")
}

// newLog returns a log on standard error: text on a terminal, JSON otherwise.
func newLog(c *Config) zerolog.Logger {
	format := c.LogFormat
	if format == "" {
		format = "json"
		if isatty.IsTerminal(os.Stderr.Fd()) {
			format = "console"
		}
	}
	log := zerolog.New(os.Stderr)
	if format == "console" {
		log = zerolog.New(textLog())
	}
	return log.Level(c.LogLevel).With().Timestamp().Logger()
}

// quietLog returns a log for management commands: warnings and errors only.
func quietLog() zerolog.Logger {
	return zerolog.New(textLog()).Level(zerolog.WarnLevel).With().Timestamp().Logger()
}

// textLog writes text to standard error, in colour on a terminal only
// (https://no-color.org).
func textLog() zerolog.ConsoleWriter {
	_, plain := environment("NO_COLOR")
	return zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.TimeOnly, NoColor: plain || !isatty.IsTerminal(os.Stderr.Fd())}
}

// loadConfig returns the configuration of a command other than serve and dev.
func loadConfig(cmd *cobra.Command) (*Config, error) {
	c := new(Config)
	if err := c.load(cmd.Flags(), environment); err != nil {
		return nil, cli.WrongUse(fmt.Errorf("configuration: %w", err))
	}
	return c, nil
}
