package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/api"
)

func statusCommand() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "show whether the service is up and ready, the caller, and what happens now", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		type who struct {
			Principal string `json:"principal"`
			Role      string `json:"role"`
			Tenant    struct {
				ID   string `json:"id"`
				Name string `json:"name"`
			} `json:"tenant"`
		}
		got := struct {
			URL   string `json:"url"`
			Up    bool   `json:"up"`
			Ready bool   `json:"ready"`
			Me    *who   `json:"me"`
			// Overview is null if the service does not have it, or cannot read it now.
			Overview *api.Overview `json:"overview"`
		}{URL: c.Base}
		got.Up = c.answers(cmd.Context(), "/healthz")
		got.Ready = got.Up && c.answers(cmd.Context(), "/readyz")
		var failed error
		if got.Up {
			got.Me = new(who)
			if failed = c.Call(cmd.Context(), "GET", "/v1/auth/me", nil, got.Me); failed != nil {
				got.Me = nil
			}
		}
		if got.Me != nil && got.Ready {
			got.Overview = new(api.Overview)
			var refused *APIError
			switch err := c.Call(cmd.Context(), "GET", "/v1/overview", nil, got.Overview); {
			case errors.As(err, &refused) && refused.Status == http.StatusNotFound: // an older service
				got.Overview = nil
			case err != nil:
				got.Overview, failed = nil, err
			}
		}
		if !got.Ready {
			failed = errors.Join(failed, errors.New("the service is not ready"))
		}
		if cli.WantsJSON(cmd) {
			return errors.Join(cli.PrintJSON(cmd.OutOrStdout(), got), failed)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s  up=%v ready=%v\n", got.URL, got.Up, got.Ready)
		if got.Me != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) in tenant %s %q\n", got.Me.Principal, got.Me.Role, got.Me.Tenant.ID, got.Me.Tenant.Name)
		}
		if got.Overview != nil {
			showOverview(cmd.OutOrStdout(), got.Overview)
		}
		return failed
	})}
}

// answersWithin is how soon a service that is up answers a check.
const answersWithin = 5 * time.Second

// answers reports whether a check is answered with 200, in time.
func (c *Client) answers(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.patience, answersWithin))
	defer cancel()
	resp, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// showOverview prints what happens now and what needs attention.
func showOverview(w io.Writer, o *api.Overview) {
	fmt.Fprintf(w, "runs       %d queued, %d running, %d waiting; in 24 h %d succeeded, %d failed, %d cancelled\n",
		o.Runs.Queued, o.Runs.Running, o.Runs.WaitingApproval, o.Runs.Succeeded24h, o.Runs.Failed24h, o.Runs.Cancelled24h)
	fmt.Fprintf(w, "approvals  %d pending, %d of them yours", o.Approvals.Pending, o.Approvals.Mine)
	if next := o.Approvals.NextExpiresAt; next != nil {
		fmt.Fprintf(w, ", the next expires at %s", next.Format(time.RFC3339))
	}
	fmt.Fprintln(w)
	if d := o.Deliveries; d != nil {
		fmt.Fprintf(w, "webhooks   %d deliveries pending, %d failed in 24 h\n", d.Pending, d.Failed24h)
	}
	for _, a := range o.Attention {
		of := ""
		if a.ID != nil {
			of = " " + cli.ShortID(a.ID.String())
		}
		fmt.Fprintf(w, "attention  %s%s %s: %d since %s\n", cli.Visible(string(a.Kind)), of, cli.Visible(a.Title), a.Count, a.Since.Format(time.RFC3339))
	}
}
