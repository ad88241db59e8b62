package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// embedKeyShown is an embed key as the API shows it.
type embedKeyShown struct {
	ID                string     `json:"id"`
	AgentID           string     `json:"agent_id"`
	Name              string     `json:"name"`
	KeyPrefix         string     `json:"key_prefix"`
	AllowedOrigins    []string   `json:"allowed_origins"`
	Enabled           bool       `json:"enabled"`
	RateLimitPerMin   int        `json:"rate_limit_per_min"`
	IdentityRequired  bool       `json:"identity_required"`
	HasIdentitySecret bool       `json:"has_identity_secret"`
	LastUsedAt        *time.Time `json:"last_used_at"`
	RevokedAt         *time.Time `json:"revoked_at"`
	Key               string     `json:"key"`
	IdentitySecret    string     `json:"identity_secret"`
	Snippet           string     `json:"snippet"`
}

// state returns the state of a key in a word.
func (k *embedKeyShown) state() string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case !k.Enabled:
		return "paused"
	}
	return "live"
}

// identity returns whether visitors can or must be identified.
func (k *embedKeyShown) identity() string {
	switch {
	case k.IdentityRequired:
		return "required"
	case k.HasIdentitySecret:
		return "optional"
	}
	return "no"
}

// origins returns where a key may be used.
func (k *embedKeyShown) origins() string {
	if len(k.AllowedOrigins) == 0 {
		return "nowhere"
	}
	shown := make([]string, len(k.AllowedOrigins))
	for i, o := range k.AllowedOrigins {
		shown[i] = cli.Visible(o)
	}
	return strings.Join(shown, " ")
}

func embedKeysCommand() *cobra.Command {
	cmd := cli.Group("embed-keys", "keys with which chat widgets on your pages talk to an agent")
	cmd.Long = idHelp
	cmd.AddCommand(deniedOriginsCommand(), embedKeysListCommand(), embedKeysGetCommand(), embedKeysCreateCommand(), embedKeysUpdateCommand(),
		embedKeysRotateCommand(), embedKeysSecretCommand(), embedKeysRevokeCommand())
	return cmd
}

func embedKeysListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list embed keys, newest first", Args: cobra.NoArgs}
	most := limitFlag(cmd, 100)
	agent := agentFlag(cmd, "keys")
	revoked := cmd.Flags().Bool("revoked", false, "include revoked keys")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		if err := checkLimit(*most); err != nil {
			return err
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		q := url.Values{}
		if *revoked {
			q.Set("include_revoked", "true")
		}
		if *agent != "" {
			found, err := c.findAgent(cmd.Context(), *agent)
			if err != nil {
				return err
			}
			q.Set("agent_id", found)
		}
		items, next, err := c.Pages(cmd.Context(), "/v1/embed-keys", q, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "embed keys", "EMBED KEY\tNAME\tPREFIX\tSTATE\tIDENTITY\tRATE\tUSED\tORIGINS", func(w io.Writer, k *embedKeyShown) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", cli.ShortID(k.ID), cli.Shorten(cli.Visible(k.Name), 40), cli.Visible(k.KeyPrefix), k.state(), k.identity(), k.RateLimitPerMin, cli.Moment(k.LastUsedAt), k.origins())
		})
	})
	return cmd
}

func embedKeysGetCommand() *cobra.Command { return onOne(embedKeyKind, "get", "one embed key", show) }

// embedKeyFlags are the flags that create and update share.
type embedKeyFlags struct {
	name          string
	origins       []string
	rate          int
	theme, config string
	required      bool
}

func (f *embedKeyFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "for people")
	flags.StringSliceVar(&f.origins, "origin", nil, "where it may be used: https://host[:port], or * for everywhere; may be given several times")
	flags.IntVar(&f.rate, "rate", 60, "messages a minute, of all visitors together")
	flags.StringVar(&f.theme, "theme", "", "how the widget looks, a JSON object: itself, @ and a file, or - for the input")
	flags.StringVar(&f.config, "config", "", "texts of the widget, a JSON object: itself, @ and a file, or - for the input")
	flags.BoolVar(&f.required, "identity-required", false, "visitors have to be identified by your back end")
}

// body returns the request body of the given flags.
func (f *embedKeyFlags) body(cmd *cobra.Command) (map[string]any, error) {
	body := map[string]any{}
	if f.theme == "-" && f.config == "-" {
		return nil, cli.WrongUse(errors.New("--theme and --config cannot both be the input"))
	}
	for flag, set := range map[string]func() error{
		"name":              func() error { body["name"] = f.name; return nil },
		"origin":            func() error { body["allowed_origins"] = given(f.origins); return nil },
		"rate":              func() error { body["rate_limit_per_min"] = f.rate; return nil },
		"identity-required": func() error { body["identity_required"] = f.required; return nil },
		"theme":             func() (err error) { body["theme"], err = readArgs(cmd.Context(), cmd.InOrStdin(), f.theme); return err },
		"config": func() (err error) {
			body["config"], err = readArgs(cmd.Context(), cmd.InOrStdin(), f.config)
			return err
		},
	} {
		if !cmd.Flags().Changed(flag) {
			continue
		}
		if err := set(); err != nil {
			return nil, cli.WrongUse(fmt.Errorf("--%s: %w", flag, err))
		}
	}
	return body, nil
}

// given returns origins without empty ones: --origin "" means none.
func given(origins []string) []string {
	out := []string{}
	for _, o := range origins {
		if o != "" {
			out = append(out, o)
		}
	}
	return out
}

func embedKeysCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create AGENT --name NAME --origin ORIGIN",
		Short: "make an embed key for an agent, by its slug or id",
		Long:  "The publishable key, and the identity secret with --identity-secret, are shown once, with the line for your page.",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: completes(agentKind, 1),
	}
	f := &embedKeyFlags{}
	f.add(cmd)
	secret := cmd.Flags().Bool("identity-secret", false, "make an identity secret as well")
	cli.Required(cmd, "name", "origin")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		body, err := f.body(cmd)
		if err != nil {
			return err
		}
		if *secret {
			body["with_identity_secret"] = true
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		if body["agent_id"], err = c.findAgent(cmd.Context(), args[0]); err != nil {
			return err
		}
		return callAndShow(cmd, c, http.MethodPost, "/v1/embed-keys", body, printOnce)
	})
	return cmd
}

// printOnce prints the values that are shown once, with the line for a page.
func printOnce(w io.Writer, k *embedKeyShown) error {
	fmt.Fprintf(w, "embed key  %s\norigins    %s\nkey        %s\n", cli.Visible(k.ID), k.origins(), cli.Visible(k.Key))
	if k.IdentitySecret != "" {
		fmt.Fprintf(w, "identity   %s\n", cli.Visible(k.IdentitySecret))
	}
	_, err := fmt.Fprintf(w, "\nThis is not shown again. For your page:\n\n%s\n", cli.Visible(k.Snippet))
	return err
}

func embedKeysUpdateCommand() *cobra.Command {
	f := &embedKeyFlags{}
	var pause, resume *bool
	cmd := onOne(embedKeyKind, "update", "change, pause or resume an embed key", func(cmd *cobra.Command, c *Client, path string) error {
		body, err := f.body(cmd)
		if err != nil {
			return err
		}
		if *pause || *resume {
			body["enabled"] = *resume
		}
		if len(body) == 0 {
			return cli.WrongUse(errors.New("nothing to change: give a flag"))
		}
		return callAndShow(cmd, c, http.MethodPatch, path, body, func(w io.Writer, k *embedKeyShown) error {
			_, err := fmt.Fprintf(w, "%s  %s, identity %s, %d a minute, %s\n", cli.Visible(k.ID), k.state(), k.identity(), k.RateLimitPerMin, k.origins())
			return err
		})
	})
	f.add(cmd)
	pause = cmd.Flags().Bool("pause", false, "pause it: its sessions end at once")
	resume = cmd.Flags().Bool("resume", false, "resume it")
	cmd.MarkFlagsMutuallyExclusive("pause", "resume")
	return cmd
}

func embedKeysRotateCommand() *cobra.Command {
	return asking(onOne(embedKeyKind, "rotate", "give an embed key another value; the former one is refused at once", func(cmd *cobra.Command, c *Client, path string) error {
		if err := agreed(cmd, c, path, cmd.Short); err != nil {
			return err
		}
		return callAndShow(cmd, c, http.MethodPost, path+"/rotate", nil, printOnce)
	}))
}

func embedKeysSecretCommand() *cobra.Command {
	return onOne(embedKeyKind, "identity-secret", "make or replace an embed key's identity secret", func(cmd *cobra.Command, c *Client, path string) error {
		return callAndShow(cmd, c, http.MethodPost, path+"/identity-secret", nil, func(w io.Writer, k *embedKeyShown) error {
			_, err := fmt.Fprintf(w, "%s\n\nIt is not shown again. Your back end signs identity tokens with it (HS256).\n", cli.Visible(k.IdentitySecret))
			return err
		})
	})
}

func embedKeysRevokeCommand() *cobra.Command {
	return asking(onOne(embedKeyKind, "revoke", "revoke an embed key for good", remove))
}

// endUserShown is an end user as the API shows it.
type endUserShown struct {
	ID         string    `json:"id"`
	ExternalID string    `json:"external_id"`
	Name       *string   `json:"name"`
	Email      *string   `json:"email"`
	Tags       []string  `json:"tags"`
	CreatedAt  time.Time `json:"created_at"`
}

func endUsersCommand() *cobra.Command {
	cmd := cli.Group("end-users", "list, read and change the end users of your product")
	cmd.Long = idHelp
	cmd.AddCommand(endUsersListCommand(), onOne(endUserKind, "get", "one end user", show), endUsersUpdateCommand(),
		asking(onOne(endUserKind, "rm", "delete an end user with all data", remove)))
	return cmd
}

func endUsersListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list end users, newest first", Args: cobra.NoArgs}
	most := limitFlag(cmd, 100)
	external := filledFlag(cmd, "external-id", "", "only the end user with this external id")
	tag := filledFlag(cmd, "tag", "", "only end users with this tag")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		q := url.Values{}
		if *external != "" {
			q.Set("external_id", *external)
		}
		if *tag != "" {
			q.Set("tag", *tag)
		}
		items, next, err := listed(cmd, endUserKind.path, q, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "end users", "END USER\tEXTERNAL ID\tNAME\tEMAIL\tTAGS\tSINCE", func(w io.Writer, u *endUserShown) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.ShortID(u.ID), cli.Shorten(cli.Visible(u.ExternalID), 40), known(u.Name), known(u.Email), cli.Visible(strings.Join(u.Tags, " ")), cli.Moment(&u.CreatedAt))
		})
	})
	return cmd
}

// known returns a text, or a dash for none.
func known(s *string) string {
	if s == nil {
		return "-"
	}
	return cli.Shorten(cli.Visible(*s), 40)
}

func endUsersUpdateCommand() *cobra.Command {
	var name, email, residency, attributes string
	var tags []string
	cmd := onOne(endUserKind, "update", "change an end user", func(cmd *cobra.Command, c *Client, path string) error {
		body := map[string]any{}
		for flag, text := range map[string]string{"name": name, "email": email, "residency": residency} {
			switch {
			case !cmd.Flags().Changed(flag):
			case text == "":
				body[flag] = nil
			default:
				body[flag] = text
			}
		}
		if cmd.Flags().Changed("tag") {
			body["tags"] = given(tags)
		}
		if cmd.Flags().Changed("attributes") {
			read, err := readArgs(cmd.Context(), cmd.InOrStdin(), attributes)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--attributes: %w", err))
			}
			body["attributes"] = read
		}
		if len(body) == 0 {
			return cli.WrongUse(errors.New("nothing to change: give a flag"))
		}
		return callAndShow(cmd, c, http.MethodPatch, path, body, func(w io.Writer, u *endUserShown) error {
			_, err := fmt.Fprintf(w, "%s  %s  %s  %s  %s\n", cli.Visible(u.ID), cli.Visible(u.ExternalID), known(u.Name), known(u.Email), cli.Visible(strings.Join(u.Tags, " ")))
			return err
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", `for people; "": unknown`)
	flags.StringVar(&email, "email", "", `"": unknown`)
	flags.StringVar(&residency, "residency", "", `a label; "": none`)
	flags.StringSliceVar(&tags, "tag", nil, `in place of the former ones; may be given several times, "": none`)
	flags.StringVar(&attributes, "attributes", "", "in place of the former ones, a JSON object: itself, @ and a file, or - for the input")
	return cmd
}
