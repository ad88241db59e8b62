package main

import (
	"context"
	"net"
	"net/netip"

	"agentsvc/persistence/knowledge"
	"agentsvc/persistence/store"
	"agentsvc/schemas/turn"
	"agentsvc/transport/browser"
	"agentsvc/transport/connector"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
	"agentsvc/transport/model"
	"agentsvc/transport/model/provider"
	"agentsvc/transport/parser"
	"agentsvc/transport/toolbox"
	"agentsvc/transport/webhook"
)

// outbound is the part of a node that calls others: models, tool servers, webhook endpoints
// and the sources of knowledge bases, all behind one guard.
type outbound struct {
	guard      *egress.Guard
	models     *provider.Providers
	tools      *toolbox.Toolbox
	skills     *toolbox.Skills
	attempts   *webhook.Sender
	connectors *connector.Connectors
	parser     *parser.Parser
	browser    *browser.Browser // performs browser skills; starts Chromium with the first one
	index      *knowledge.Index // makes the vectors of queries with models
	noted      *store.Noted     // writes how exchanges with tool servers went, and denied origins
	judging    *turn.Places     // for checks of definitions, manifests and tools that routes ask for
}

// judgingPlaces is how many definitions and manifests are checked at once: as many as
// schemas/flow and schemas/check admit.
const judgingPlaces = 2

// Places of a node for answers of tool servers above 64 KiB, and those of one tenant. An answer of 8 MiB takes
// about five times as much while it is read.
const (
	largeAnswers     = 16
	largeAnswersEach = 4
)

func (s *service) openOutbound(context.Context) error {
	c := s.c
	s.guard = egress.New(egress.Config{Allow: c.OutboundAllow, Own: ownAddresses(s.ln, c.MetricsAddr, c.ClusterAddr), Live: s.live})
	registry := model.NewRegistry(model.Config{Guard: s.guard, RequireTLS: c.Production,
		OpenAI:    model.Provider{Kind: model.OpenAI, BaseURL: c.OpenAIURL, APIKey: model.Secret(c.OpenAIKey)},
		Anthropic: model.Provider{Kind: model.Anthropic, BaseURL: c.AnthropicURL, APIKey: model.Secret(c.AnthropicKey)}})
	s.onStop(infallible(registry.Close))
	s.models = &provider.Providers{Tables: s.tables, Vault: s.keys, Registry: registry}
	s.judging = turn.New(judgingPlaces, 1)
	s.index = knowledge.NewIndex(s.pools.api, s.models)
	gateway := mcp.New(mcp.Config{Guard: s.guard, RequireTLS: c.Production, Timeout: c.ToolTimeout, TTL: c.ToolsTTL, Stdio: c.StdioServers, Env: stdioEnv(), Live: s.live,
		Large: turn.New(largeAnswers, largeAnswersEach), Log: s.log})
	s.onStop(func(ctx context.Context) error { gateway.Close(ctx); return nil })
	s.attempts = webhook.New(webhook.Config{Guard: s.guard, Timeout: c.WebhookTimeout, RequireTLS: true, Version: version, Now: s.member.Now})
	s.onStop(infallible(s.attempts.Close))
	var err error
	if s.browser, err = openBrowser(c, s.guard, s.log); err != nil {
		return err
	}
	if err := s.browser.Available(); err != nil && (c.Browser.Path != "" || c.Browser.CDP != "" || c.Browser.Driver != "") {
		s.log.Warn().Err(err).Msg("browser skills are not available, and the settings ask for them")
	}
	s.node.Serve(browser.RecorderService, s.browser.NewRecorder(browser.RecorderConfig{}).Served)
	s.onStop(s.browser.Close)
	s.skills = &toolbox.Skills{Rows: store.NewSkillRuns(s.pools.system), Ask: skillRunsAt{s.node}.ask, Available: s.browser.Available}
	s.noted = store.NewNoted(s.pools.system, s.member.Now, s.log)
	s.noted.OnChange(s.board.Note)
	s.tools = toolbox.New(toolbox.Config{Note: s.noted.Exchange, Tables: s.tables, Vault: s.keys, Gateway: gateway, Guard: s.guard, HTTPSOnly: c.Production, Stdio: c.StdioServers, Timeout: c.ToolTimeout, Log: s.log,
		Searcher: runSearcher{s.index}, Skills: s.skills, Judging: s.judging})
	s.connectors = connector.New(connector.Config{Guard: s.guard, OfficeDriveURL: c.OfficeDriveURL, CloudDriveURL: c.CloudDriveURL, RequireTLS: c.Production, Version: version})
	s.onStop(infallible(s.connectors.Close))
	s.parser, err = openParser()
	return err
}

// ownAddresses are the listeners that outbound calls never reach.
func ownAddresses(ln net.Listener, others ...string) []netip.AddrPort {
	var own []netip.AddrPort
	for _, a := range append([]string{ln.Addr().String()}, others...) {
		addr, err := net.ResolveTCPAddr("tcp", a)
		if err != nil || a == "" {
			continue
		}
		at := addr.AddrPort()
		ip := at.Addr().Unmap()
		if !ip.IsValid() { // a port alone: every address of this machine
			ip = netip.IPv6Unspecified()
		}
		own = append(own, netip.AddrPortFrom(ip, at.Port()))
	}
	return own
}
