package platform

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/password"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type loginInput struct{ Body api.Login }

type passwordInput struct{ Body api.PasswordChange }

// minFits is how many comparisons a login without a tenant makes at least, so that their number
// does not reveal in how many tenants an e-mail is known. It is compared with every user of the
// e-mail.
const minFits = 2

// decoyPassword is the hash to compare with when the user does not exist: a miss costs the same
// work as a wrong password.
var decoyPassword = sync.OnceValue(func() string { return password.Hash("the password of nobody") })

// clientKey returns the bucket of a client address: IPv6 clients count by /64.
func clientKey(ip netip.Addr) string {
	ip = ip.Unmap()
	if ip.Is6() {
		if net, err := ip.WithZone("").Prefix(64); err == nil {
			return net.Addr().String()
		}
	}
	return ip.String()
}

// allowLogin takes a token from the client's bucket and one from the bucket called of.
func (p *Platform) allowLogin(ctx context.Context, c *edge.Caller, of string) error {
	for _, key := range []string{"address " + clientKey(c.IP), of} {
		retry, ok, err := p.Logins.Allow(ctx, key)
		if err != nil {
			return err
		}
		if !ok {
			return problem.RateLimited("Rate limit of scope login exceeded.", max(retry, time.Millisecond))
		}
	}
	return nil
}

// refuse answers a login that matches no user. The total time is the same, whatever was done
// before.
func (s *Sessions) refuse(ctx context.Context, began time.Time) error {
	pause.For(ctx, s.refusal-time.Since(began))
	return unauthorized("No user has this e-mail with this password.")
}

func (p *Platform) login(ctx context.Context, c *edge.Caller, in *loginInput) (*api.LoggedIn, error) {
	began := time.Now()
	if err := p.allowLogin(ctx, c, "email "+strings.ToLower(in.Body.Email)); err != nil {
		return nil, err
	}
	found, err := p.Logins.Find(ctx, in.Body.Email)
	if err != nil {
		return nil, err
	}
	users := make([]store.LoginUser, 0, len(found))
	for _, u := range found {
		if in.Body.TenantID == nil || *in.Body.TenantID == u.Tenant {
			users = append(users, u)
		}
	}
	least := minFits
	if in.Body.TenantID != nil {
		least = 1
	}
	var fit, failed []store.LoginUser
	for left := users; ; {
		some := left[:min(len(left), p.Sessions.fitsAtOnce)]
		left = left[len(some):]
		if err := p.Sessions.hashes.do(ctx, clientKey(c.IP), func() {
			dummy := decoyPassword()
			for _, u := range some {
				if password.Matches(u.PasswordHash, in.Body.Password) {
					fit = append(fit, u)
				} else {
					failed = append(failed, u)
				}
			}
			for range least - len(users) {
				password.Matches(dummy, in.Body.Password)
			}
		}); err != nil {
			return nil, err
		}
		if len(left) == 0 {
			break
		}
	}
	if err := p.recordFailed(ctx, c, failed, in.Body.TenantID != nil); err != nil {
		return nil, err
	}
	switch len(fit) {
	case 0:
		return nil, p.Sessions.refuse(ctx, began)
	case 1:
		return p.begin(ctx, c, fit[0], began)
	}
	return nil, problem.New(problem.CodeTenantRequired, "E-mail and password fit users of several tenants: name one in tenant_id.")
}

// A login waits foreignWait for a place of a tenant that it did not name, for foreignAtOnce such
// tenants at a time, and foreignTotal for all of them.
const (
	foreignWait   = 250 * time.Millisecond
	foreignAtOnce = 4
	foreignTotal  = 2 * time.Second
)

// recordFailed records the failure in every tenant whose user has this e-mail, even if the login
// succeeded for another: a tenant that creates a user with another person's e-mail cannot test
// that person's password unnoticed. Only a tenant that the client named learns the address; the
// others have not proved that the e-mail is theirs. For the same reason they cannot hold up or
// refuse the login, however busy they are: what they do not take in time goes to the node's log.
func (p *Platform) recordFailed(ctx context.Context, c *edge.Caller, failed []store.LoginUser, named bool) error {
	if named { // one tenant, in which an e-mail is unique
		for _, u := range failed {
			if err := p.Store.LoginFailed(ctx, store.By{Tenant: u.Tenant, IP: by(c).IP}, u.ID); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, foreignTotal)
	defer cancel()
	for some := range slices.Chunk(failed, foreignAtOnce) {
		var written sync.WaitGroup
		for _, u := range some {
			written.Go(func() {
				if err := p.Store.LoginFailed(ctx, store.By{Tenant: u.Tenant, Patience: foreignWait}, u.ID); err != nil {
					p.Log.Warn().Err(err).Stringer("tenant", u.Tenant).Stringer("user", u.ID).Msg("a failed login is not in the audit log")
				}
			})
		}
		written.Wait()
	}
	return nil
}

// begin starts the session of a user whose password matched.
func (p *Platform) begin(ctx context.Context, c *edge.Caller, u store.LoginUser, began time.Time) (*api.LoggedIn, error) {
	out := &api.LoggedIn{}
	var token store.Token
	who := store.By{Tenant: u.Tenant, Actor: "user:" + u.ID.String(), IP: by(c).IP}
	begun := false
	err := p.Store.Change(ctx, who, func(ctx context.Context, tx *store.Tx) (_ []byte, err error) {
		if token, begun, err = tx.CreateSession(ctx, u.ID, &u.PasswordHash, "password", p.Sessions.cfg.Now()); err != nil || !begun {
			return nil, err
		}
		if out.User, err = tx.User(ctx, u.ID); err != nil {
			return nil, err
		}
		out.Tenant, err = tx.Tenant(ctx)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	if !begun { // the user was removed or got another password during the check
		return nil, p.Sessions.refuse(ctx, began)
	}
	c.SetHeader("Set-Cookie", p.cookie(token.Text()))
	return out, nil
}

func (p *Platform) logout(ctx context.Context, c *edge.Caller, _ *nothing) (*edge.Empty, error) {
	s, err := sessionOf(c)
	if err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, none2((*store.Tx).EndSession, s, c.User))
	if out, err = told(ctx, p, msg.Revoked{What: msg.RevokedSession, Tenant: c.Tenant, User: c.User, Session: s}, out, err); err != nil {
		return nil, err
	}
	c.SetHeader("Set-Cookie", p.cookie(""))
	return out, nil
}

func (p *Platform) changePassword(ctx context.Context, c *edge.Caller, in *passwordInput) (*edge.Empty, error) {
	if _, err := sessionOf(c); err != nil {
		return nil, err
	}
	// The e-mail's bucket is not asked: strangers empty it with wrong logins.
	if err := p.allowLogin(ctx, c, "user "+c.User.String()); err != nil {
		return nil, err
	}
	old, err := p.Store.View(c.Tenant).PasswordHash(ctx, c.User)
	if err != nil {
		return nil, err
	}
	fits, hash := false, ""
	if err := p.Sessions.hashes.do(ctx, clientKey(c.IP), func() {
		if fits = old != nil && password.Matches(*old, in.Body.Current); fits {
			hash = password.Hash(in.Body.New)
		}
	}); err != nil {
		return nil, err
	}
	wrong := problem.Invalid("current", "is not the password")
	if !fits {
		if err := p.Store.LoginFailed(ctx, store.By{Tenant: c.Tenant, IP: by(c).IP}, c.User); err != nil {
			return nil, err
		}
		return nil, wrong
	}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*edge.Empty, error) {
		fits, err := tx.SetPassword(ctx, c.User, *old, hash)
		if err == nil && !fits { // it was changed in the meantime
			err = wrong
		}
		return nil, err
	})
	if out, err = told(ctx, p, msg.Revoked{What: msg.RevokedUser, Tenant: c.Tenant, User: c.User}, out, err); err != nil {
		return nil, err
	}
	c.SetHeader("Set-Cookie", p.cookie(""))
	return out, nil
}

const htmlType = "text/html; charset=utf-8"

const (
	pageTop = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>`
	pageHead = pageTop + "Sign in" + pageBody
	pageBody = `</title>
<style>` + pageStyle + `</style>
</head>
<body>
<main>
`
	pageStyle = `body{font:16px/1.5 system-ui,sans-serif;margin:0;display:grid;min-height:100vh;place-items:center;background:#f6f7f9;color:#1b1f24}` +
		`main{max-width:24rem;padding:2rem}button{font:inherit;padding:.6rem 1.4rem;border:0;border-radius:.5rem;background:#2563eb;color:#fff;cursor:pointer}` +
		`li{margin:.6rem 0}code{overflow-wrap:anywhere}`
	pageEnd = "</main>\n</body>\n</html>\n"

	askPage      = pageHead + "<h1>Sign in</h1>\n<p>This link signs you in once.</p>\n<form method=\"post\"><button>Sign in</button></form>\n" + pageEnd
	deadPage     = pageHead + "<h1>This link cannot be used</h1>\n<p>It was used already, is older than 15 minutes, or never was one. Ask for a new one.</p>\n" + pageEnd
	strangerPage = pageHead + "<h1>Not signed in</h1>\n<p>Open your login link again, or ask for a new one.</p>\n" + pageEnd
	bluntEnd     = pageHead + "<h1>Wrong origin</h1>\n<p>Another site sent this. Open the link itself to sign in.</p>\n" + pageEnd
)

var styleHash = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return base64.StdEncoding.EncodeToString(sum[:])
}()

// html returns one of the login pages: it runs no script, and text from others is escaped.
func (p *Platform) html(status int, page string) *edge.RawAnswer {
	return &edge.RawAnswer{Status: status, ContentType: htmlType, Body: []byte(page), Headers: []edge.Header{
		{Name: "Content-Security-Policy", Value: "default-src 'none'; style-src 'sha256-" + styleHash + "'; form-action 'self' " + p.Sessions.origin + "; base-uri 'none'; frame-ancestors 'none'"},
		{Name: "Referrer-Policy", Value: "no-referrer"},
		{Name: "X-Frame-Options", Value: "DENY"},
		{Name: "Cache-Control", Value: "no-store"},
	}}
}

// showLink shows the button and changes nothing: software that checks links in messages
// before they are read opens it too.
func (p *Platform) showLink(ctx context.Context, _ *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	if _, err := leadsTo(in); err != nil {
		return nil, err
	}
	k, ok := store.ParseToken(in.Param("token"))
	if ok {
		var err error
		if ok, err = p.Store.View(k.Tenant).LinkUsable(ctx, k, p.Sessions.cfg.Now()); err != nil {
			return nil, err
		}
	}
	if !ok {
		return p.html(http.StatusUnauthorized, deadPage), nil
	}
	return p.html(http.StatusOK, askPage), nil
}

// useLink begins a session. Another site must not log a visitor in as a different user; under
// this page's referrer policy a form's Origin is null, so the browser's Sec-Fetch-Site
// decides.
func (p *Platform) useLink(ctx context.Context, c *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	if site := in.Header("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return p.html(http.StatusForbidden, bluntEnd), nil
	}
	next, err := leadsTo(in)
	if err != nil {
		return nil, err
	}
	k, ok := store.ParseToken(in.Param("token"))
	if !ok {
		return p.html(http.StatusUnauthorized, deadPage), nil
	}
	var token store.Token
	err = p.Store.Change(ctx, store.By{Tenant: k.Tenant, Actor: msg.System, IP: by(c).IP}, func(ctx context.Context, tx *store.Tx) (_ []byte, err error) {
		token, ok, err = tx.UseLink(ctx, k, p.Sessions.cfg.Now())
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	if !ok {
		return p.html(http.StatusUnauthorized, deadPage), nil
	}
	a := p.html(http.StatusSeeOther, "")
	// The location names no host: the browser keeps the cookie for the host name under which
	// the link was opened.
	a.Headers = append(a.Headers, edge.Header{Name: "Location", Value: next}, edge.Header{Name: "Set-Cookie", Value: p.cookie(token.Text())})
	return a, nil
}

// leadsTo returns where a login link redirects to: the path of its next, or the console's first
// page. The form of the link's page sends the query along.
func leadsTo(in *edge.Raw) (string, error) {
	if !in.Values().Has("next") {
		return api.Home, nil
	}
	next := in.Values().Get("next")
	return next, api.CheckNext(next)
}

// signedInPath is the page of the signed-in user, beside the login links.
const signedInPath = "done"

// maxShown limits how many approvals the page after a login lists.
const maxShown = 20

// showSignedIn shows the signed-in user and the approvals that this user may decide.
func (p *Platform) showSignedIn(ctx context.Context, c *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	token := ""
	cookies, _ := http.ParseCookie(in.Header("Cookie")) // an unreadable cookie counts as no session
	for _, cookie := range cookies {
		if cookie.Name == "svc_session" {
			token = cookie.Value
		}
	}
	who, err := p.Sessions.Authenticate(ctx, edge.Credentials{Cookie: token, Method: "GET", IP: c.IP})
	var refused *problem.Error
	if errors.As(err, &refused) && refused.Code == problem.CodeUnauthorized {
		return p.html(http.StatusUnauthorized, strangerPage), nil
	}
	if err != nil {
		return nil, err
	}
	v := p.Store.View(who.Tenant)
	user, err := v.User(ctx, who.User)
	if err != nil {
		return nil, err
	}
	tenant, err := v.Tenant(ctx)
	if err != nil {
		return nil, err
	}
	approver, err := p.approver(ctx, &edge.Caller{Identity: who})
	if err != nil {
		return nil, err
	}
	bound := store.Bound{Bytes: api.MaxListBytes}
	waiting, err := v.Bounded(&bound).Approvals(ctx, approver, store.ApprovalFilter{Statuses: []lifecycle.ApprovalStatus{lifecycle.ApprovalPending}}, store.ApprovalAt{}, maxShown+1)
	if err != nil {
		return nil, err
	}
	return p.html(http.StatusOK, signedInPage(user, tenant, waiting, bound.Cut)), nil
}

func signedInPage(user *api.User, tenant *api.Tenant, waiting []api.Approval, cut bool) string {
	var b strings.Builder
	b.WriteString(pageTop + "Signed in" + pageBody + "<h1>Signed in</h1>\n")
	fmt.Fprintf(&b, "<p>You are <bdi>%s</bdi> (%s) in <bdi>%s</bdi>.</p>\n<h2>Approvals waiting for you</h2>\n", html.EscapeString(user.Email), user.Role, html.EscapeString(tenant.Name))
	if len(waiting) == 0 {
		b.WriteString("<p>Nothing waits for your decision.</p>\n" + pageEnd)
		return b.String()
	}
	b.WriteString("<ul>\n")
	for _, a := range waiting[:min(len(waiting), maxShown)] {
		text := a.ID.String()
		fmt.Fprintf(&b, "<li><bdi>%s</bdi>, %s risk, until %s<br><code>svc approvals approve %s</code></li>\n",
			html.EscapeString(a.RequestedAction.Tool), a.Risk, a.ExpiresAt.UTC().Format("2006-01-02 15:04 UTC"), text[len(text)-8:])
	}
	if cut || len(waiting) > maxShown {
		b.WriteString("<li>and more</li>\n")
	}
	b.WriteString("</ul>\n<p>To decide, sign in on the command line with <code>svc login</code>, or with <code>svc login --link</code> and another link.</p>\n" + pageEnd)
	return b.String()
}
