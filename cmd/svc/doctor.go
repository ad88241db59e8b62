package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/store"
)

// finding is one line of svc doctor.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "check the configuration, database, files, schema and runs",
		Long:  "Checks the configuration, the store of files, the database and its data, whether or not the server runs. It names the database, and changes nothing: the file that it writes to check the store of files is removed again.",
		Args:  cobra.NoArgs,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			found := diagnose(cmd)
			sick := 0
			for _, f := range found {
				if !f.OK {
					sick++
				}
			}
			var err error
			if cli.WantsJSON(cmd) {
				err = cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"ok": sick == 0, "findings": found})
			} else {
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				for _, f := range found {
					fmt.Fprintf(w, "%s\t%s\t%s\n", map[bool]string{true: "ok", false: "BAD"}[f.OK], f.Check, f.Detail)
				}
				err = w.Flush()
			}
			if sick > 0 {
				err = errors.Join(err, fmt.Errorf("%d of %d checks failed", sick, len(found)))
			}
			return err
		}),
	}
}

// diagnose runs the checks in order and stops where the next ones need what has failed.
func diagnose(cmd *cobra.Command) (found []finding) {
	note := func(check string, err error, detail string) bool {
		if err != nil {
			detail = err.Error()
		}
		found = append(found, finding{check, err == nil, detail})
		return err == nil
	}
	c, err := loadConfig(cmd)
	if !note("configuration", err, "every value can be read") {
		return found
	}
	note("public address", c.reachable(), c.PublicURL)
	if names := strangers(os.Environ()); len(names) > 0 {
		note("environment", errors.New(strings.Join(names, "; ")), "")
	} else {
		note("environment", nil, "every SVC_ variable is known")
	}
	detail, err := checkFiles(cmd.Context(), c)
	note("files", err, detail)
	err = withDatabase(cmd.Context(), c, managing, func(ctx context.Context, where string, pool *pg.Pool) error {
		tenants, err := store.System(pool, nil).Tenants(ctx)
		if err != nil {
			return err
		}
		note("database", nil, fmt.Sprintf("%s, schema version %d, %s", where, migrate.Latest(), plural(len(tenants), "tenant")))
		note("files that the database names", checkStored(ctx, c, pool), "the store is in use, or there are none")
		keys, err := unlock(ctx, c, pool, false)
		if errors.Is(err, fs.ErrNotExist) && c.MasterKey == "" {
			note("master key", nil, "none yet: the first start makes one") // nothing is sealed: unlock would have refused otherwise
		} else if note("master key", err, "opens this database") {
			opened, err := reseal.Sample(ctx, pool, keys, sealedColumns())
			if err != nil {
				return err
			}
			for _, o := range opened {
				detail := "a value opens"
				if !o.Found {
					detail = "no value"
				}
				note("sealed "+o.Table+"."+o.Column, o.Err, detail)
			}
		}
		checks := slices.Clone(feed.TimerChecks)
		for _, k := range kinds {
			checks = append(checks, k.Checks...)
		}
		sick, err := feed.NewSweep(pool).Diagnose(ctx, checks)
		if err != nil {
			return err
		}
		for _, s := range sick {
			var bad error
			if s.Count > 0 {
				bad = fmt.Errorf("%d, e.g. %s", s.Count, s.Example)
			}
			note(s.Check, bad, "none")
		}
		return nil
	})
	if err != nil {
		note("database", err, "")
	}
	return found
}

// plural returns a number with its noun: 1 tenant, 2 tenants.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
