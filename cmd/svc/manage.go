package main

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/password"
)

// These commands work on the database, whether or not the server runs, also with a
// private Postgres.

// openVault reads the master keys. In development, create makes one if the data directory
// has none.
func openVault(c *Config, create bool) (*vault.Vault, error) {
	previous, err := vault.ParseKeys(strings.Join(c.MasterPrevious, ","))
	if err != nil {
		return nil, fmt.Errorf("SVC_MASTER_KEY_PREVIOUS: %w", err)
	}
	if c.MasterKey == "" {
		load := vault.Load
		if create {
			load = vault.LoadOrCreate
		}
		key, err := load(c.DataDir)
		if err != nil {
			return nil, err
		}
		return vault.New(key, previous...), nil
	}
	current, err := vault.ParseKey(c.MasterKey)
	if err != nil {
		return nil, fmt.Errorf("SVC_MASTER_KEY: %w", err)
	}
	return vault.New(current, previous...), nil
}

// unlock opens the vault and returns an error if its keys do not open the database. With
// create, a new database gets its canary, and in development its key. A database that
// holds sealed values never gets another key.
func unlock(ctx context.Context, c *Config, pool *pg.Pool, create bool) (*vault.Vault, error) {
	if c.MasterKey == "" && !vault.Exists(c.DataDir) {
		locked, err := reseal.Locked(ctx, pool, sealedColumns())
		if err != nil {
			return nil, err
		}
		if locked {
			return nil, fmt.Errorf("the master key is missing: the database holds values sealed under the key of %s: put that file back, or set SVC_MASTER_KEY to its content",
				absolute(vault.KeyFile(c.DataDir)))
		}
	}
	keys, err := openVault(c, create)
	if err != nil {
		return nil, err
	}
	judge := reseal.Check
	if create {
		judge = reseal.Unlock
	}
	if err := judge(ctx, pool, keys, sealedColumns()); err != nil {
		return nil, sealedOtherwise(c, err)
	}
	return keys, nil
}

// sealedOtherwise says what to do about a key that does not open the database.
func sealedOtherwise(c *Config, err error) error {
	if !errors.Is(err, reseal.ErrKey) {
		return err
	}
	return fmt.Errorf("%s: %w: its values were sealed under another key, or some of them under a key with which a server ran since the last complete svc reseal. "+
		"Start with that key; after a rotation, also one that was taken back, the other key belongs into SVC_MASTER_KEY_PREVIOUS until svc reseal says that it is no longer needed", keySource(c), err)
}

// keySource returns where the master key came from.
func keySource(c *Config) string {
	if c.MasterKey == "" {
		return absolute(vault.KeyFile(c.DataDir))
	}
	return "SVC_MASTER_KEY"
}

// manage runs work on an existing database. It needs no master key, so work must not seal
// values.
func manage(ctx context.Context, c *Config, work func(ctx context.Context, s *store.SystemStore) error) error {
	return withDatabase(ctx, c, managing, func(ctx context.Context, _ string, pool *pg.Pool) error {
		return work(ctx, store.System(pool, nil))
	})
}

// withDatabase runs work on a connection to the database. where names it for people.
func withDatabase(ctx context.Context, c *Config, a access, work func(ctx context.Context, where string, pool *pg.Pool) error) (err error) {
	st, err := openStorage(ctx, c, quietLog(), a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close(context.WithoutCancel(ctx))) }()
	pool, err := pg.Open(ctx, st.url, pg.Options{Role: pg.System, MaxConns: 2, AppName: "svc manage"})
	if err != nil {
		return err
	}
	defer pool.Close()
	return work(ctx, st.where, pool)
}

// onDatabase is withDatabase for a command that reads its settings first.
func onDatabase(cmd *cobra.Command, a access, work func(ctx context.Context, c *Config, pool *pg.Pool) error) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	return withDatabase(cmd.Context(), c, a, func(ctx context.Context, _ string, pool *pg.Pool) error { return work(ctx, c, pool) })
}

func migrateCommand() *cobra.Command {
	return &cobra.Command{Use: "migrate", Short: "bring the database up to date", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		return onDatabase(cmd, migrates, func(context.Context, *Config, *pg.Pool) error {
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{"up_to_date": true})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the database is up to date")
			return err
		})
	})}
}

func tenantCommand() *cobra.Command {
	cmd := cli.Group("tenant", "list and make tenants")
	create := &cobra.Command{Use: "create", Short: "make a tenant with its owner and a first API key", Args: cobra.NoArgs}
	var n newTenant
	create.Flags().StringVar(&n.Name, "name", "", "name of the tenant, 1 to 120 characters")
	create.Flags().StringVar(&n.OwnerEmail, "owner-email", "", "e-mail of the owner")
	create.Flags().StringVar(&n.OwnerPassword, "owner-password", "", "password of the owner, 12 to 200 characters; without one the owner cannot sign in yet")
	cli.Required(create, "name", "owner-email")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := n.check(); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			made, err := createTenant(cmd.Context(), c, n)
			if err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "tenant   %s\nowner    %s\nAPI key  %s   (shown once)\n", made.TenantID, made.OwnerID, made.APIKey)
			return err
		})(cmd, nil)
	}
	cmd.AddCommand(tenantListCommand(), create)
	return cmd
}

type newTenant struct{ Name, OwnerEmail, OwnerPassword string }

func (n newTenant) check() error {
	return errors.Join(checkName("--name", n.Name), checkEmail("--owner-email", n.OwnerEmail), checkPassword("--owner-password", n.OwnerPassword))
}

type madeTenant struct {
	TenantID id.TenantID `json:"tenant_id"`
	OwnerID  id.UserID   `json:"owner_id"`
	APIKey   string      `json:"api_key"`
}

func createTenant(ctx context.Context, c *Config, n newTenant) (*madeTenant, error) {
	var made *madeTenant
	return made, manage(ctx, c, func(ctx context.Context, s *store.SystemStore) error {
		got, err := s.CreateTenant(ctx, store.NewTenant{Name: n.Name, OwnerEmail: n.OwnerEmail, PasswordHash: hashed(n.OwnerPassword), KeyName: "first key"})
		if err != nil {
			return err
		}
		made = &madeTenant{got.Tenant, got.Owner, got.Secret}
		return nil
	})
}

func keyCommand() *cobra.Command {
	cmd := cli.Group("key", "manage API keys")
	create := &cobra.Command{Use: "create", Short: "make an API key", Args: cobra.NoArgs}
	tenant := create.Flags().String("tenant", "", tenantHelp)
	name := create.Flags().String("name", "", "name of the key, 1 to 120 characters")
	cli.Required(create, "tenant", "name")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(checkTenant(*tenant), checkName("--name", *name)); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			var made *api.APIKeyCreated
			if err := inTenant(cmd, *tenant, func(ctx context.Context, tx *store.Tx) (err error) {
				made, err = tx.CreateKey(ctx, *name)
				return err
			}); err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), made)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "API key  %s   (shown once)\n", made.Secret)
			return err
		})(cmd, nil)
	}
	cmd.AddCommand(create)
	return cmd
}

func userCommand() *cobra.Command {
	cmd := cli.Group("user", "manage people")
	create := &cobra.Command{Use: "create", Short: "make a user", Args: cobra.NoArgs}
	tenant := create.Flags().String("tenant", "", tenantHelp)
	email := create.Flags().String("email", "", "e-mail, unique in the tenant")
	role := create.Flags().String("role", "", "member, admin or owner")
	name := create.Flags().String("name", "", "full name")
	secret := create.Flags().String("password", "", "password, 12 to 200 characters")
	cli.Required(create, "tenant", "email", "role")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		err := checkTenant(*tenant)
		r := lifecycle.Role("")
		for _, known := range lifecycle.UserRoles {
			if string(known) == *role {
				r = known
			}
		}
		if r == "" {
			err = errors.Join(err, errors.New("--role: must be member, admin or owner"))
		}
		if err := errors.Join(err, checkEmail("--email", *email), checkPassword("--password", *secret)); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			var made *api.User
			if err := inTenant(cmd, *tenant, func(ctx context.Context, tx *store.Tx) (err error) {
				made, err = tx.CreateUser(ctx, store.NewUser{Email: *email, Name: *name, Role: r, PasswordHash: hashed(*secret)})
				return err
			}); err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), made)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "user  %s\n", made.ID)
			return err
		})(cmd, nil)
	}
	cmd.AddCommand(create, loginLinkCommand())
	return cmd
}

func loginLinkCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "login-link", Short: "make a link that signs a user in to the console, once and within 15 minutes", Args: cobra.NoArgs}
	tenant := cmd.Flags().String("tenant", "", tenantHelp)
	email := cmd.Flags().String("email", "", "e-mail of the user")
	next := cmd.Flags().String("next", "", "path of the console that the link leads to, as /console/approvals")
	cli.Required(cmd, "tenant", "email")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(checkTenant(*tenant), checkEmail("--email", *email), checkNext(*next)); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := c.reachable(); err != nil {
				return err // the link would be of no use
			}
			var made loginLink
			if err := inTenant(cmd, *tenant, func(ctx context.Context, tx *store.Tx) error {
				token, expires, err := tx.CreateLink(ctx, *email)
				made = loginLink{store.LinkURL(c.PublicURL, token, *next), expires}
				return err
			}); err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", made.URL)
			return err
		})(cmd, nil)
	}
	return cmd
}

type loginLink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

func checkNext(next string) error {
	if next != "" && api.CheckNext(next) != nil {
		return errors.New("--next: must be a path of the console: /console or below")
	}
	return nil
}

// inTenant makes one change in a tenant that must exist.
func inTenant(cmd *cobra.Command, tenant string, change func(ctx context.Context, tx *store.Tx) error) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	return manage(cmd.Context(), c, func(ctx context.Context, s *store.SystemStore) error {
		t, err := findTenant(ctx, s, tenant)
		if err != nil {
			return err
		}
		if _, err := s.View(t).Tenant(ctx); err != nil {
			return fmt.Errorf("tenant %s: %w", t, err)
		}
		return s.Change(ctx, store.By{Tenant: t, Actor: msg.System}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
			return nil, change(ctx, tx)
		})
	})
}

func checkName(flag, v string) error {
	if n := utf8.RuneCountInString(v); n < 1 || n > 120 {
		return fmt.Errorf("%s: must have 1 to 120 characters", flag)
	}
	return nil
}

func checkEmail(flag, v string) error {
	if a, err := mail.ParseAddress(v); err != nil || a.Address != v || len(v) > 254 {
		return fmt.Errorf("%s: must be an e-mail address", flag)
	}
	return nil
}

func checkPassword(flag, v string) error {
	if n := utf8.RuneCountInString(v); v != "" && (n < password.Min || n > password.Max) {
		return fmt.Errorf("%s: must have %d to %d characters", flag, password.Min, password.Max)
	}
	return nil
}

// hashed returns the hash of a password, nil for none.
func hashed(secret string) *string {
	if secret == "" {
		return nil
	}
	h := password.Hash(secret)
	return &h
}
