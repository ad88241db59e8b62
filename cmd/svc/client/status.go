package client

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

func statusCommand() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "show whether the service is up and ready, and the caller", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
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
		}{URL: c.Base}
		got.Up = c.answers(cmd, "/healthz")
		got.Ready = got.Up && c.answers(cmd, "/readyz")
		var failed error
		if got.Up {
			got.Me = new(who)
			if failed = c.Call(cmd.Context(), "GET", "/v1/auth/me", nil, got.Me); failed != nil {
				got.Me = nil
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
		return failed
	})}
}

func (c *Client) answers(cmd *cobra.Command, path string) bool {
	resp, err := c.request(cmd.Context(), http.MethodGet, path, nil)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
