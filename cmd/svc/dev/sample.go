package dev

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/browser/site"
)

// sample is what svc dev makes on its first start and keeps in the data
// directory, so that every start prints the same calls.
type sample struct {
	URL      string `json:"url"`
	TenantID string `json:"tenant_id"`
	OwnerID  string `json:"owner_id"`
	APIKey   string `json:"api_key"`
	AgentID  string `json:"agent_id"`
	// The demo tool server, once it is registered.
	ServerID     string `json:"server_id,omitempty"`
	ConnectionID string `json:"connection_id,omitempty"`
	// The sample workflow, its agents, and the hook that starts it.
	WorkflowID   string `json:"workflow_id,omitempty"`
	ClassifierID string `json:"classifier_id,omitempty"`
	WriterID     string `json:"writer_id,omitempty"`
	HookID       string `json:"hook_id,omitempty"`
	HookURL      string `json:"hook_url,omitempty"`
	HookSecret   string `json:"hook_secret,omitempty"`
	// The knowledge base of the guides, the digest of those it has, and the agent that searches it.
	BaseID  string `json:"knowledge_base_id,omitempty"`
	Guides  string `json:"guides,omitempty"`
	GuideID string `json:"guide_id,omitempty"`
	// EmbedKey is the publishable key of the demo page.
	EmbedKey   string `json:"embed_key,omitempty"`
	EmbedKeyID string `json:"embed_key_id,omitempty"`
	// The skill of the old back office, its agent, and the address of the site.
	SkillID   string `json:"skill_id,omitempty"`
	ClerkID   string `json:"clerk_id,omitempty"`
	OfficeURL string `json:"office_url,omitempty"`
	// The address and token of the demo tool server, kept over restarts.
	DeskURL   string `json:"desk_url,omitempty"`
	DeskToken string `json:"desk_token,omitempty"`
	DataDir   string `json:"data_dir"`
	// PID is the process that serves, or the parent of the nodes.
	PID int `json:"pid"`
	// ConsoleURL signs the owner in to the console, once and within 15 minutes. Each start makes another one.
	ConsoleURL string `json:"console_url,omitempty"`
	// Nodes are the addresses behind the balancer, if there are several nodes.
	Nodes []string `json:"nodes,omitempty"`
}

const (
	sampleFile  = "dev.json"
	sampleAgent = "hello"
)

// simulated is the built-in model, as a manifest names it.
var simulated = map[string]any{"provider": "simulated", "name": "sim-1"}

// seed makes the missing parts of the sample. What must outlive a kill is written to
// the data directory before it is used: the tenant's id, its API key and the demo
// server's token. The rows in the database are one transaction. So there is one
// development tenant, however often and wherever a start is interrupted.
func (c *Config) seed(ctx context.Context, s *sample, desk, office string) error {
	s.PID = os.Getpid()
	if err := c.Manage(ctx, func(ctx context.Context, sys *store.SystemStore) error {
		return s.make(ctx, sys, c.PublicURL, desk, office)
	}); err != nil {
		return err
	}
	s.HookURL = c.PublicURL + "/hooks/" + s.HookID
	if err := errors.Join(s.save(), s.writeWorkflow()); err != nil {
		return err
	}
	// The node runs already, so later changes go through its API. They are kept once
	// they are done there.
	api := &client.Client{Base: c.LocalURL, Key: s.APIKey, Tenant: s.TenantID, HTTP: &http.Client{Timeout: 30 * time.Second}}
	if s.DeskURL != desk {
		if err := s.moveDesk(ctx, api, desk); err != nil {
			return err
		}
		s.DeskURL = desk
	}
	if s.URL != c.PublicURL {
		if err := s.moveWidget(ctx, api, c.PublicURL); err != nil {
			return err
		}
		s.URL = c.PublicURL
	}
	if err := s.putGuides(ctx, api); err != nil {
		return err
	}
	if err := c.Manage(ctx, s.linkConsole); err != nil {
		return err
	}
	return s.save()
}

// linkConsole makes the login link of this start.
func (s *sample) linkConsole(ctx context.Context, sys *store.SystemStore) error {
	u, err := id.Parse(s.TenantID)
	if err != nil {
		return err
	}
	s.ConsoleURL = ""
	return sys.Change(ctx, store.By{Tenant: id.TenantID{UUID: u}, Actor: msg.System}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		token, _, err := tx.CreateLink(ctx, ownerEmail)
		var gone *problem.Error
		if errors.As(err, &gone) && gone.Code == problem.CodeNotFound { // the tenant removed its first owner
			return nil, nil
		}
		if err == nil {
			s.ConsoleURL = strings.TrimSuffix(s.URL, "/") + "/login/" + token.Text()
		}
		return nil, err
	})
}

// openSample reads what an earlier start left in the data directory, or plans a new
// sample and keeps the plan.
func openSample(dir string) (*sample, error) {
	s := &sample{DataDir: dir}
	b, err := os.ReadFile(filepath.Join(dir, sampleFile))
	switch {
	case err == nil:
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w; move it away: the next svc dev writes it again for the same tenant", filepath.Join(dir, sampleFile), err)
		}
		s.DataDir = dir
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	if s.APIKey == "" {
		s.APIKey = apikey.Mint(id.KeyID{UUID: id.NewAnywhere()})
	}
	if s.DeskToken == "" {
		s.DeskToken = rand.Text()
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	return s, s.save()
}

// save writes the sample. After a crash the file is the former or the new one, complete.
func (s *sample) save() error {
	kept := *s
	kept.Nodes, kept.ConsoleURL = nil, ""
	b, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.DataDir, ".dev-*.json") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(s.DataDir, sampleFile))
}

// devTenant is the name by which the tenant is found if the file was lost.
const devTenant = "Development"

// ownerEmail is the e-mail of the tenant's first owner, who has no password.
const ownerEmail = "owner@localhost.localdomain"

// make makes the tenant and its parts, or finds those that are there. url is the
// service's public address, desk the demo tool server's, office the old back office's.
func (s *sample) make(ctx context.Context, sys *store.SystemStore, url, desk, office string) error {
	if s.TenantID == "" {
		tenants, err := sys.Tenants(ctx)
		if err != nil {
			return err
		}
		s.TenantID = id.NewAnywhere().String()
		for _, t := range tenants {
			if t.Name == devTenant {
				s.TenantID = t.ID.String()
				break
			}
		}
		if err := s.save(); err != nil {
			return err
		}
	}
	u, err := id.Parse(s.TenantID)
	if err != nil {
		return fmt.Errorf("%s: tenant_id: %w", sampleFile, err)
	}
	tenant := id.TenantID{UUID: u}
	if err := s.liveKey(ctx, sys.View(tenant)); err != nil {
		return err
	}
	made, err := sys.EnsureTenant(ctx, store.NewTenant{ID: tenant, Name: devTenant, OwnerEmail: ownerEmail, KeyName: "svc dev", Secret: s.APIKey})
	if err != nil {
		return err
	}
	if made { // the file belongs to another database, which has the rest
		s.AgentID, s.ServerID, s.ConnectionID, s.EmbedKeyID, s.EmbedKey = "", "", "", "", ""
		s.WorkflowID, s.ClassifierID, s.WriterID, s.HookID, s.HookSecret = "", "", "", "", ""
		s.BaseID, s.Guides, s.GuideID = "", "", ""
		s.SkillID, s.ClerkID = "", ""
	}
	view := sys.View(tenant)
	return sys.Change(ctx, store.By{Tenant: tenant, Actor: msg.System}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		if err := s.makeAgent(ctx, view, tx, &s.AgentID, sampleAgent, &api.AgentCreate{Name: "Hello", Emoji: "👋", Description: "The sample agent of svc dev, on the built-in simulated model."},
			map[string]any{"model": simulated, "instructions": "You are a friendly sample.", "tools": map[string]any{"mcp": []any{map[string]any{"server": sampleServer}}}}); err != nil {
			return nil, err
		}
		if err := s.makeTools(ctx, view, tx, desk); err != nil {
			return nil, err
		}
		if err := s.makeWorkflow(ctx, view, tx); err != nil {
			return nil, err
		}
		if err := s.makeGuide(ctx, view, tx); err != nil {
			return nil, err
		}
		if err := s.makeOffice(ctx, view, tx, office); err != nil {
			return nil, err
		}
		return nil, s.makeWidget(ctx, view, tx, url)
	})
}

// liveKey plans another API key if the kept one was revoked.
func (s *sample) liveKey(ctx context.Context, view store.View) error {
	kept, _, err := apikey.Parse(s.APIKey)
	if err != nil {
		return fmt.Errorf("%s: api_key: %w", sampleFile, err)
	}
	keys, err := view.Keys(ctx, id.KeyID{}, store.All)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.ID == kept && k.RevokedAt != nil {
			s.APIKey = apikey.Mint(id.KeyID{UUID: id.NewAnywhere()})
			return s.save()
		}
	}
	return nil
}

// makeAgent makes a published agent with that slug, unless kept holds its id already. An agent
// that was archived stays archived.
func (s *sample) makeAgent(ctx context.Context, view store.View, tx *store.Tx, kept *string, slug string, in *api.AgentCreate, manifest map[string]any) error {
	if *kept != "" {
		return nil
	}
	agents, err := view.Agents(ctx, id.AgentID{}, store.All)
	if err != nil {
		return err
	}
	for _, a := range agents {
		if a.Slug == slug {
			*kept = a.ID.String()
			return nil
		}
	}
	in.Slug = &slug
	a, err := tx.CreateAgent(ctx, in)
	if err != nil {
		return err
	}
	doc, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if _, _, err := tx.CreateVersion(ctx, a.ID, doc); err != nil {
		return err
	}
	if _, _, err := tx.Publish(ctx, a.ID, 1); err != nil {
		return err
	}
	*kept = a.ID.String()
	return nil
}

// makeWidget makes the key of the demo page, which is used from the service's own
// origin and from pages on this machine.
func (s *sample) makeWidget(ctx context.Context, view store.View, tx *store.Tx, url string) error {
	if s.EmbedKeyID != "" {
		return nil
	}
	origins, err := demoOrigins(url)
	if err != nil {
		return err
	}
	const name = "Demo page"
	there, err := view.EmbedKeys(ctx, store.EmbedKeyFilter{}, id.EmbedKeyID{}, store.All)
	if err != nil {
		return err
	}
	for _, k := range there {
		if k.Name == name && k.AgentID.String() == s.AgentID { // its value is lost with the file
			for _, o := range k.AllowedOrigins {
				if !slices.Contains(origins, o) {
					origins = append(origins, o)
				}
			}
			if _, err := tx.UpdateEmbedKey(ctx, k.ID, &api.EmbedKeyPatch{AllowedOrigins: &origins}); err != nil {
				return err
			}
			turned, err := tx.RotateEmbedKey(ctx, k.ID)
			if err != nil {
				return err
			}
			s.EmbedKeyID, s.EmbedKey, s.URL = k.ID.String(), turned.Key, url
			return nil
		}
	}
	agent, err := id.Parse(s.AgentID)
	if err != nil {
		return err
	}
	const greeting = "Hello! I am a sample, on the built-in simulated model. What I stream quotes what you say."
	made, err := tx.CreateEmbedKey(ctx, &api.EmbedKeyCreate{AgentID: id.AgentID{UUID: agent}, Name: name, AllowedOrigins: origins,
		Config: &api.EmbedDisplayConfig{Greeting: greeting, StarterPrompts: []string{"What can you do?", "/say A **bold** word and `code`.", "/call orders.list {}"}}})
	if err != nil {
		return err
	}
	s.EmbedKeyID, s.EmbedKey, s.URL = made.ID.String(), made.Key, url
	return nil
}

// moveWidget allows the demo page's key at the service's new address instead of the address
// of the last start. Origins that the tenant added stay.
func (s *sample) moveWidget(ctx context.Context, api *client.Client, url string) error {
	origins, err := demoOrigins(url)
	if err != nil {
		return err
	}
	former, err := demoOrigins(s.URL)
	if err != nil {
		return err
	}
	path := "/v1/embed-keys/" + s.EmbedKeyID
	var key struct {
		AllowedOrigins []string `json:"allowed_origins"`
	}
	if err := api.Patient(ctx, http.MethodGet, path, nil, &key); err != nil {
		return err
	}
	for _, o := range key.AllowedOrigins {
		if !slices.Contains(former, o) && !slices.Contains(origins, o) {
			origins = append(origins, o)
		}
	}
	err = api.Patient(ctx, http.MethodPatch, path, map[string]any{"allowed_origins": origins}, nil)
	var gone *client.APIError
	if errors.As(err, &gone) && gone.Status == http.StatusNotFound {
		return nil // the tenant revoked it: it stays revoked
	}
	return err
}

// demoOrigins returns the origins of pages of a service at that address and of pages on
// this machine.
func demoOrigins(service string) (origins []string, err error) {
	public, err := url.Parse(service)
	if err != nil {
		return nil, err
	}
	for _, host := range []string{public.Hostname(), "localhost", "127.0.0.1"} {
		page := url.URL{Scheme: public.Scheme, Host: host}
		if port := public.Port(); port != "" {
			page.Host = net.JoinHostPort(host, port)
		}
		if o, err := embed.ParseOrigin(page.String()); err == nil && !slices.Contains(origins, o.String()) {
			origins = append(origins, o.String())
		}
	}
	return origins, nil
}

func (s *sample) print(c *Config) error {
	var more string
	if c.RealModel {
		more = "\nA real model is configured: give an agent a version whose model.provider is \"openai\" or \"anthropic\".\n"
	}
	if len(s.Nodes) > 0 {
		more += "\nNodes behind the balancer: " + strings.Join(s.Nodes, " ") + "\nKill one of them, and look: " + os.Args[0] + " cluster status\n"
	}
	unavailable := ""
	if c.NoBrowser != "" {
		unavailable = "  (not yet: " + c.NoBrowser + ")\n"
	}
	console := s.ConsoleURL
	if console == "" {
		console = strings.TrimSuffix(s.URL, "/") + "/console/"
	}
	_, err := fmt.Fprintf(c.Out, `svc %s is ready

  Console  %s   (signs you in once, within 15 minutes)
  API      %s/v1   (description: %s/v1/openapi.json)
  Tenant   %s
  API key  %s   (development only)
  Agent    %s, on the simulated model
  Workflow %s, started by a signed hook (%s)
  Guides   a knowledge base, from which the agent %s answers
  Office   %s, an old back office where the agent %s cancels orders (%s, %s)
  Widget   %s/embed/v1/demo?key=%s
  Data     %s

Paste this for a streamed answer:

  export SVC_URL=%s SVC_TENANT=%s SVC_API_KEY=%s
  RUN=$(curl -sS "$SVC_URL/v1/agents/%s/runs" -H "Authorization: Bearer $SVC_API_KEY" -H "X-Tenant-Id: $SVC_TENANT" -H "Content-Type: application/json" -d '{"input":"Hello there!\n/delay 60ms"}' | grep -oE '[0-9a-f-]{36}')
  curl -sSN "$SVC_URL/v1/runs/$RUN/events" -H "Authorization: Bearer $SVC_API_KEY" -H "X-Tenant-Id: $SVC_TENANT"

A refund waits for a person. Say this in a chat, and decide:

  /call orders.refund {"order_id":"1001","amount":12.5,"reason":"arrived broken"}

A complaint starts the workflow, which asks a person before it pays back more than 50. Paste this, and decide in another terminal:

  BODY='%s'
  RUN=$(curl -sS %s -H "X-Svc-Signature-256: sha256=$(printf %%s "$BODY" | openssl dgst -sha256 -hmac %s -r | cut -d' ' -f1)" --data-binary "$BODY" | grep -oE '[0-9a-f-]{36}')
  %s runs watch $RUN

Or talk to it:  %s chat %s
Or to the guides, which answer with citations:  %s chat %s --evidence
Or let it work on a web site that has no API:  %s chat %s, and say
  %s
%s%s`, c.Version, console, s.URL, s.URL, s.TenantID, s.APIKey, sampleAgent, sampleWorkflow, filepath.Join(s.DataDir, complaintsFile), guideAgent, s.OfficeURL, clerkAgent, site.User, site.Password, s.URL, s.EmbedKey, s.DataDir, s.URL, s.TenantID, s.APIKey, s.AgentID,
		complaint, s.HookURL, s.HookSecret, os.Args[0], os.Args[0], sampleAgent, os.Args[0], guideAgent, os.Args[0], clerkAgent, officeCall, unavailable, more)
	return err
}
