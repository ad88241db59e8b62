package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
)

const tenantHelp = "the tenant: its id, at least the last 8 digits of it, or its name as svc tenant ls shows it (TENANT)"

func checkTenant(text string) error {
	if text == "" {
		return errors.New("--tenant: must not be empty")
	}
	return nil
}

// findTenant returns the tenant that text names.
func findTenant(ctx context.Context, s *store.SystemStore, text string) (id.TenantID, error) {
	full, is := cli.FullID(text)
	if !is {
		tenants, err := s.Tenants(ctx)
		if err != nil {
			return id.TenantID{}, err
		}
		all := make([]cli.Named, len(tenants))
		for i, t := range tenants {
			all[i] = cli.Named{ID: t.ID.String(), Slug: cli.SlugOf(t.Name), Label: cli.Visible(t.Name)}
		}
		if full, err = cli.Pick("tenant", text, true, all); err != nil {
			return id.TenantID{}, fmt.Errorf("--tenant: %w", err)
		}
	}
	u, err := id.Parse(full)
	return id.TenantID{UUID: u}, err
}

func tenantListCommand() *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "list tenants, oldest first", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		return manage(cmd.Context(), c, func(ctx context.Context, s *store.SystemStore) error {
			tenants, err := s.Tenants(ctx)
			if err != nil {
				return err
			}
			items := make([]json.RawMessage, len(tenants))
			for i, t := range tenants {
				if items[i], err = json.Marshal(t); err != nil {
					return err
				}
			}
			return cli.PrintList(cmd, items, nil, 0, "tenants", "TENANT\tID\tNAME\tSINCE", func(w io.Writer, t *api.Tenant) {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cli.Dash(cli.SlugOf(t.Name)), t.ID, cli.Visible(t.Name), cli.Moment(&t.CreatedAt))
			})
		})
	})}
}
