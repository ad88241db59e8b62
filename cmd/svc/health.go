package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// healthTime is the deadline of a health check.
const healthTime = 3 * time.Second

// direct uses no proxy of the environment, which would not lead to this machine.
var direct = http.Client{Transport: &http.Transport{}}

func healthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "check whether the node at SVC_ADDR is up, for health checks of containers",
		Long:  "Asks /healthz of the node on this machine, or with --ready /readyz, which also says whether it can serve now. It needs no key. The exit code is 0 for yes and 1 for no.",
		Args:  cobra.NoArgs,
	}
	ready := cmd.Flags().Bool("ready", false, "check whether it can serve: the database is reachable, and it does not drain")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		path := "/healthz"
		if *ready {
			path = "/readyz"
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), healthTime)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dialable(c.Addr)+path, nil)
		if err != nil {
			return err
		}
		resp, err := direct.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s: %s", req.URL, resp.Status, body)
		}
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{"ok": true})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
		return err
	})
	return cmd
}
