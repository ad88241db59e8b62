package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"agentsvc/schemas/embed"
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
	// EmbedKey is the publishable key of the demo page.
	EmbedKey   string `json:"embed_key,omitempty"`
	EmbedKeyID string `json:"embed_key_id,omitempty"`
	DataDir    string `json:"data_dir"`
	// Nodes are the addresses behind the balancer, where there are several.
	Nodes []string `json:"nodes,omitempty"`
}

const (
	sampleFile  = "dev.json"
	sampleAgent = "hello"
	// maxFleet is how many nodes one machine is asked to run.
	maxFleet = 16
)

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "a first look: serve with a tenant, a key and a published sample agent, and calls to paste",
		Args:  cobra.NoArgs,
	}
	var c Config
	c.bind(cmd.Flags())
	nodes := cmd.Flags().Int("nodes", 1, "so many nodes as processes on this machine, with a Redis and a load balancer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(cmd.Flags(), environment); err != nil {
			return err
		}
		switch {
		case c.Production:
			return errors.New("svc dev is for development: unset SVC_ENV, or use svc serve")
		case *nodes < 1 || *nodes > maxFleet:
			return fmt.Errorf("--nodes: must be 1 to %d", maxFleet)
		case c.ClusterAddr != "":
			return errors.New("svc dev makes its own cluster with --nodes: unset SVC_CLUSTER_ADDR, or use svc serve")
		case *nodes > 1 && c.MetricsAddr != "":
			return errors.New("--nodes: several nodes have no one SVC_METRICS_ADDR: unset it, and each has /metrics on its own address")
		}
		if len(c.OutboundAllow) == 0 { // tool servers of a first look are on this machine
			c.OutboundAllow = loopback
		}
		if !cmd.Flags().Changed("log-level") && os.Getenv("SVC_LOG_LEVEL") == "" {
			c.LogLevel = zerolog.WarnLevel // the output is the calls to paste
		}
		return does(func(cmd *cobra.Command, _ []string) error {
			desk, err := openDesk()
			if err != nil {
				return err
			}
			defer desk.close()
			log := newLog(&c)
			ready := func(ctx context.Context, f *fleet) error {
				s, err := seed(ctx, &c, desk)
				if err != nil {
					return err
				}
				if f != nil {
					s.Nodes = f.addrs()
				}
				if wantsJSON(cmd) {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
				}
				return s.print(cmd.OutOrStdout(), &c)
			}
			if *nodes > 1 {
				return serveFleet(cmd.Context(), &c, c.given(cmd.Flags()), *nodes, log, cmd.ErrOrStderr(), ready)
			}
			return serve(cmd.Context(), &c, log, func(ctx context.Context) error { return ready(ctx, nil) })
		})(cmd, nil)
	}
	return cmd
}

// seed makes what is missing of the sample. It talks to the running node as a
// tenant's back end would; only the tenant itself comes from the management.
func seed(ctx context.Context, c *Config, d *desk) (*sample, error) {
	file := filepath.Join(c.DataDir, sampleFile)
	s := new(sample)
	b, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	case errors.Is(err, os.ErrNotExist):
		made, err := createTenant(ctx, c, newTenant{Name: "Development", OwnerEmail: "owner@localhost.localdomain"})
		if err != nil {
			return nil, err
		}
		s.TenantID, s.OwnerID, s.APIKey = made.TenantID.String(), made.OwnerID.String(), made.APIKey
	default:
		return nil, err
	}
	before := s.URL
	s.URL, s.DataDir = c.PublicURL, c.DataDir
	api := &client{base: "http://" + dialable(c.Addr), key: s.APIKey, tenant: s.TenantID, http: &http.Client{Timeout: 30 * time.Second}}
	if s.AgentID == "" {
		var made struct{ Agent struct{ ID string } }
		if err := api.call(ctx, http.MethodPost, "/v1/agents", map[string]any{
			"name": "Hello", "slug": sampleAgent, "emoji": "👋", "description": "The sample agent of svc dev, on the built-in simulated model.",
			"manifest": map[string]any{"model": map[string]any{"provider": "simulated", "name": "sim-1"}, "instructions": "You are a friendly sample.",
				"tools": map[string]any{"mcp": []any{map[string]any{"server": sampleServer}}}},
		}, &made); err != nil {
			return nil, err
		}
		if err := api.call(ctx, http.MethodPost, "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil); err != nil {
			return nil, err
		}
		s.AgentID = made.Agent.ID
	}
	if err := s.tools(ctx, api, d); err != nil {
		return nil, err
	}
	if err := s.widget(ctx, api, before); err != nil {
		return nil, err
	}
	if b, err = json.Marshal(s); err != nil {
		return nil, err
	}
	return s, os.WriteFile(file, b, 0o600)
}

// widget makes the key of the demo page, which is used from the service's own origin
// and from pages on this machine. Where the service has not the address of its last
// start, the key's origins go with it; those that somebody added stay.
func (s *sample) widget(ctx context.Context, api *client, before string) error {
	origins, err := demoOrigins(s.URL)
	if err != nil {
		return err
	}
	if s.EmbedKeyID != "" {
		return s.moveWidget(ctx, api, before, origins)
	}
	var made struct{ ID, Key string }
	if err := api.call(ctx, http.MethodPost, "/v1/embed-keys", map[string]any{
		"agent_id": s.AgentID, "name": "Demo page", "allowed_origins": origins,
		"config": map[string]any{"greeting": "Hello! I am a sample, on the built-in simulated model. What I stream quotes what you say.",
			"starter_prompts": []string{"What can you do?", "/say A **bold** word and `code`.", "/call orders.list {}"}},
	}, &made); err != nil {
		return err
	}
	s.EmbedKeyID, s.EmbedKey = made.ID, made.Key
	return nil
}

// moveWidget has the demo page's key used from origins, and no more from those of the
// service's address before.
func (s *sample) moveWidget(ctx context.Context, api *client, before string, origins []string) error {
	if before == s.URL {
		return nil
	}
	former, err := demoOrigins(before)
	if err != nil {
		return err
	}
	path := "/v1/embed-keys/" + s.EmbedKeyID
	var key struct {
		AllowedOrigins []string `json:"allowed_origins"`
	}
	if err := api.call(ctx, http.MethodGet, path, nil, &key); err != nil {
		return err
	}
	for _, o := range key.AllowedOrigins {
		if !slices.Contains(former, o) && !slices.Contains(origins, o) {
			origins = append(origins, o)
		}
	}
	err = api.call(ctx, http.MethodPatch, path, map[string]any{"allowed_origins": origins}, nil)
	var gone *apiError
	if errors.As(err, &gone) && gone.Status == http.StatusNotFound {
		return nil // somebody revoked it: it stays revoked
	}
	return err
}

// demoOrigins are where pages of a service at that address, and of this machine, are.
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

// dialable turns the address of a listener into one that this machine reaches.
func dialable(addr string) string {
	for _, any := range []string{"0.0.0.0:", "[::]:", ":"} {
		if port, ok := strings.CutPrefix(addr, any); ok {
			return "127.0.0.1:" + port
		}
	}
	return addr
}

func (s *sample) print(w io.Writer, c *Config) error {
	var more string
	if c.OpenAIKey != "" || c.AnthropicKey != "" {
		more = "\nA real model is configured: give an agent a version whose model.provider is \"openai\" or \"anthropic\".\n"
	}
	if len(s.Nodes) > 0 {
		more += "\nNodes behind the balancer: " + strings.Join(s.Nodes, " ") + "\nKill one of them, and look: " + os.Args[0] + " cluster status\n"
	}
	_, err := fmt.Fprintf(w, `svc %s is ready

  API      %s/v1   (description: %s/v1/openapi.json)
  Tenant   %s
  API key  %s   (development only)
  Agent    %s, on the simulated model
  Widget   %s/embed/v1/demo?key=%s
  Data     %s

Paste this for a streamed answer:

  export SVC_URL=%s SVC_TENANT=%s SVC_API_KEY=%s
  RUN=$(curl -sS "$SVC_URL/v1/agents/%s/runs" -H "Authorization: Bearer $SVC_API_KEY" -H "X-Tenant-Id: $SVC_TENANT" -H "Content-Type: application/json" -d '{"input":"Hello there!\n/delay 60ms"}' | grep -oE '[0-9a-f-]{36}')
  curl -sSN "$SVC_URL/v1/runs/$RUN/events" -H "Authorization: Bearer $SVC_API_KEY" -H "X-Tenant-Id: $SVC_TENANT"

A refund waits for a person. Say this in a chat, and decide:

  /call orders.refund {"order_id":"1001","amount":12.5,"reason":"arrived broken"}

Or talk to it:  %s chat %s
%s`, version, s.URL, s.URL, s.TenantID, s.APIKey, sampleAgent, s.URL, s.EmbedKey, s.DataDir, s.URL, s.TenantID, s.APIKey, s.AgentID, os.Args[0], sampleAgent, more)
	return err
}
