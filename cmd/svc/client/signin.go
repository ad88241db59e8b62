package client

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentsvc/cmd/svc/cli"
)

// sessionCookie is the cookie that carries a person's session.
const sessionCookie = "svc_session"

// kept is a session as svc login stores it: one file for each service and tenant.
type kept struct {
	URL        string    `json:"url"`
	TenantID   string    `json:"tenant_id"`
	TenantName string    `json:"tenant_name"`
	UserID     string    `json:"user_id"`
	Email      string    `json:"email"`
	Role       string    `json:"role"`
	Cookie     string    `json:"cookie,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
}

// sessionDir returns the directory with the sessions of a service.
func sessionDir(service string) (string, error) {
	config, err := os.UserConfigDir() // XDG_CONFIG_HOME, or ~/.config
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(service))
	return filepath.Join(config, "svc", "sessions", hex.EncodeToString(sum[:8])), nil
}

func (s *kept) file() (string, error) {
	dir, err := sessionDir(s.URL)
	return filepath.Join(dir, s.TenantID+".json"), err
}

// keep writes the session atomically, readable for its owner only.
func (s *kept) keep() error {
	file, err := s.file()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(file), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name()) // gone already after the rename
	_, err = fresh.Write(b)
	if err = errors.Join(err, fresh.Close()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), file)
}

func (s *kept) forget() error {
	file, err := s.file()
	if err != nil {
		return err
	}
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// keptSession returns the stored session for the service and tenant of the environment. If
// no tenant is set, it returns the only session. It returns nil if there is none.
func keptSession(service, tenant string) (*kept, error) {
	all, err := keptSessions(service)
	if err != nil {
		return nil, err
	}
	if tenant != "" {
		if full, is := cli.FullID(tenant); is {
			tenant = full
		} else if len(all) > 0 {
			if tenant, err = cli.Pick("tenant", tenant, true, namesOf(all)); err != nil {
				return nil, fmt.Errorf("SVC_TENANT: %w", err)
			}
		}
		for _, s := range all {
			if s.TenantID == tenant {
				return s, nil
			}
		}
		return nil, nil
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], nil
	}
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "\n  %s  %s, %s", s.TenantID, cli.Visible(s.TenantName), cli.Visible(s.Email))
	}
	return nil, fmt.Errorf("you are signed in to %d tenants of %s: set SVC_TENANT to one of them%s", len(all), service, b.String())
}

func keptSessions(service string) ([]*kept, error) {
	dir, err := sessionDir(service)
	if err != nil {
		return nil, nil //nolint:nilerr // without a home directory no session is stored
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []*kept
	for _, file := range files {
		info, err := os.Stat(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // signed out meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("%s can be read by others: chmod 600 it, or sign out and in again", file)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := new(kept)
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if s.URL == service { // otherwise the hashes of two services collide
			all = append(all, s)
		}
	}
	return all, nil
}

// whoAmI is the answer to a login, and to GET /v1/auth/me.
type whoAmI struct {
	Role string `json:"role"`
	User *struct {
		ID    string `json:"id"`
		Email string `json:"email"`
		Role  string `json:"role"`
	} `json:"user"`
	Tenant struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"tenant"`
}

func loginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "login",
		Short: "sign in as a person, so that decisions carry your name",
		Long: "Keeps a session of the service at SVC_URL in a file of yours (mode 0600, below $XDG_CONFIG_HOME/svc or ~/.config/svc), one for each service and tenant.\n" +
			"The other commands use it when SVC_API_KEY is not set: an explicit SVC_API_KEY wins. With sessions of several tenants SVC_TENANT says which.\n" +
			"Without a session of the tenant --tenant needs its full id: a shorter one cannot be looked up before you are signed in.\n" +
			"The password is asked for and not shown; without a terminal it is the first line of the input. --link takes a link of svc user login-link instead.\n" +
			"A session ends after 12 hours without use, after 7 days, and with svc logout.",
		Args: cobra.NoArgs,
	}
	email := cmd.Flags().String("email", "", "your e-mail; asked for without it")
	tenant := cmd.Flags().String("tenant", "", "full id of the tenant, if your e-mail and password fit several; with a session of the tenant also its slug or the last 8 digits of its id")
	link := cmd.Flags().String("link", "", "a one-time login link, in place of e-mail and password")
	cmd.MarkFlagsMutuallyExclusive("link", "email")
	cmd.MarkFlagsMutuallyExclusive("link", "tenant")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		cfg := loadSettings()
		c := &Client{Base: cfg.url, HTTP: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
		in := &asker{cmd: cmd, in: bufio.NewReader(cmd.InOrStdin()), terminal: isTerminal(cmd.InOrStdin())}
		var err error
		if *link != "" {
			err = c.useLink(cmd.Context(), *link)
		} else {
			err = c.logIn(cmd.Context(), in, *email, *tenant)
		}
		if err != nil {
			return err
		}
		return c.keepSession(cmd)
	})
	return cmd
}

// asker asks a person on a terminal, or reads lines from another input.
type asker struct {
	cmd      *cobra.Command
	in       *bufio.Reader
	terminal bool
}

func (a *asker) line(prompt string) (string, error) {
	if a.terminal {
		fmt.Fprint(a.cmd.ErrOrStderr(), prompt)
	}
	text, err := awaited(a.cmd.Context(), func() (string, error) { return a.in.ReadString('\n') })
	if errors.Is(err, errInterrupted) {
		return "", err
	}
	if err != nil && (!errors.Is(err, io.EOF) || text == "") {
		return "", fmt.Errorf("nothing was entered: %w", err)
	}
	return strings.TrimRight(text, "\r\n"), nil
}

// secret reads a line that a terminal does not show.
func (a *asker) secret(prompt string) (string, error) {
	f, is := a.cmd.InOrStdin().(*os.File)
	if !a.terminal || !is {
		return a.line(prompt)
	}
	fmt.Fprint(a.cmd.ErrOrStderr(), prompt)
	fd := int(f.Fd())
	shown, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	b, err := awaited(a.cmd.Context(), func() ([]byte, error) { return term.ReadPassword(fd) })
	if errors.Is(err, errInterrupted) {
		err = errors.Join(err, term.Restore(fd, shown)) // the read that is left behind hides what is typed
	}
	fmt.Fprintln(a.cmd.ErrOrStderr())
	return string(b), err
}

// logIn starts a session by e-mail and password.
func (c *Client) logIn(ctx context.Context, in *asker, email, tenant string) (err error) {
	if email == "" {
		if !in.terminal {
			return cli.WrongUse(errors.New("--email: is required without a terminal"))
		}
		if email, err = in.line("E-mail: "); err != nil {
			return err
		}
	}
	if tenant, err = c.tenantID(tenant); err != nil {
		return cli.WrongUse(fmt.Errorf("--tenant: %w", err))
	}
	secret, err := in.secret("Password: ")
	if err != nil {
		return err
	}
	for {
		body := map[string]string{"email": email, "password": secret}
		if tenant != "" {
			body["tenant_id"] = tenant
		}
		err = c.begin(ctx, "/v1/auth/login", body, http.StatusOK)
		var refused *APIError
		if !errors.As(err, &refused) {
			return err
		}
		switch {
		case refused.Code == "TENANT_REQUIRED" && tenant == "" && in.terminal:
			if tenant, err = in.line("Your e-mail and password fit several tenants. Full tenant ID: "); err != nil {
				return err
			}
			if tenant, err = c.tenantID(tenant); err != nil {
				return err
			}
			continue
		case refused.Code == "TENANT_REQUIRED":
			refused.Detail = "your e-mail and password fit several tenants: give the full id of one with --tenant"
		case refused.Status == http.StatusUnauthorized:
			refused.Detail = "e-mail or password is wrong"
		}
		return refused
	}
}

// tenantID returns the full id of the tenant that text names, empty for none. There is no
// session yet, so only tenants with a stored session can be named other than by their id.
func (c *Client) tenantID(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	if full, is := cli.FullID(text); is {
		return full, nil
	}
	all, err := keptSessions(c.Base)
	if err != nil {
		return "", err
	}
	if tenant, err := cli.Pick("tenant", text, true, namesOf(all)); err == nil {
		return tenant, nil
	}
	return "", fmt.Errorf("%q names no tenant that you have a session of: login needs the full id of the tenant", cli.Visible(text))
}

// namesOf returns the tenants of sessions, as commands name them.
func namesOf(all []*kept) []cli.Named {
	known := make([]cli.Named, len(all))
	for i, s := range all {
		known[i] = cli.Named{ID: s.TenantID, Slug: cli.SlugOf(s.TenantName), Label: cli.Visible(s.TenantName)}
	}
	return known
}

// useLink starts a session by a one-time login link. It uses the token at the service of the
// environment, whatever the host of the link.
func (c *Client) useLink(ctx context.Context, link string) error {
	u, err := url.Parse(strings.TrimSpace(link))
	token := ""
	if err == nil {
		_, token, _ = strings.Cut(u.Path, "/login/")
	}
	if token == "" || strings.Contains(token, "/") {
		return cli.WrongUse(errors.New("--link: must be a login link, as https://agents.example.com/login/AbC…"))
	}
	err = c.begin(ctx, "/login/"+url.PathEscape(token), nil, http.StatusSeeOther)
	var refused *APIError
	if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized {
		return errors.New("the link cannot be used: it was used already, is older than 15 minutes, or belongs to another service than " + c.Base)
	}
	return err
}

// begin makes the call that starts a session and reads its cookie.
func (c *Client) begin(ctx context.Context, path string, body any, want int) error {
	resp, err := c.request(ctx, http.MethodPost, path, body)
	if err != nil {
		return fmt.Errorf("%s is not reachable: %w", c.Base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		return c.problemOf(resp)
	}
	for _, cookie := range resp.Cookies() {
		if cookie.Name == sessionCookie && cookie.Value != "" {
			c.session = cookie.Value
			return nil
		}
	}
	return errors.New("the service began no session")
}

// keepSession asks whose session was started, and stores it. It ends a session of the same
// tenant that was stored before.
func (c *Client) keepSession(cmd *cobra.Command) error {
	var me whoAmI
	if err := c.Call(cmd.Context(), http.MethodGet, "/v1/auth/me", nil, &me); err != nil {
		return err
	}
	if me.User == nil {
		return errors.New("the service knows no person by this session")
	}
	s := &kept{URL: c.Base, TenantID: me.Tenant.ID, TenantName: me.Tenant.Name, UserID: me.User.ID, Email: me.User.Email, Role: me.User.Role,
		Cookie: c.session, CreatedAt: time.Now().UTC()}
	former, _ := keptSession(c.Base, s.TenantID) // one that cannot be read is replaced
	if err := s.keep(); err != nil {
		return errors.Join(err, c.endSession(cmd.Context()))
	}
	if former != nil {
		old := &Client{Base: c.Base, session: former.Cookie, Tenant: former.TenantID, HTTP: c.HTTP}
		_ = old.endSession(cmd.Context()) // it expires
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), s.shown())
	}
	fmt.Fprintf(cmd.OutOrStdout(), "signed in as %s (%s) in tenant %s %q\n", cli.Visible(s.Email), cli.Visible(s.Role), s.TenantID, s.TenantName)
	if os.Getenv("SVC_API_KEY") != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "SVC_API_KEY is set and wins: unset it to act as yourself")
	}
	return nil
}

// shown is a session without its secret.
func (s kept) shown() kept {
	s.Cookie = ""
	return s
}

// endSession ends the client's session at the service. One that has ended
// already is no error.
func (c *Client) endSession(ctx context.Context) error {
	err := c.Call(ctx, http.MethodPost, "/v1/auth/logout", nil, nil)
	var refused *APIError
	if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized {
		return nil
	}
	return err
}

func logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "end the session of svc login, at the service and on this machine",
		Long:  "Ends the session of the service at SVC_URL and removes its file. With sessions of several tenants SVC_TENANT says which.",
		Args:  cobra.NoArgs,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			cfg := loadSettings()
			s, err := keptSession(cfg.url, cfg.tenant)
			if err != nil {
				return cli.WrongUse(err)
			}
			if s == nil {
				return fmt.Errorf("you are not signed in to %s", cfg.url)
			}
			c := &Client{Base: s.URL, session: s.Cookie, Tenant: s.TenantID, HTTP: &http.Client{}}
			// The file is removed in any case: a session that cannot be ended now expires.
			ended := c.endSession(cmd.Context())
			if err := s.forget(); err != nil {
				return errors.Join(err, ended)
			}
			if ended != nil {
				return fmt.Errorf("the session was removed here, but the service could not end it (it ends after 12 hours without use): %w", ended)
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{"signed_out": true})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "signed out of tenant %s %q\n", s.TenantID, s.TenantName)
			return err
		}),
	}
}
