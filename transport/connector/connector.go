// Package connector opens the sources of knowledge bases: one folder for each kind, which speaks
// the vendor's interface, and vendor for what their requests have in common. schemas/source says
// what a source is.
//
// Contents are streams of at most 50 MiB, listings are read a page at a time. A vendor that fails
// for a moment is asked again, one that hangs is given up after Timing's bounds. Errors are
// source.Fault, which tenants may read.
package connector

import (
	"agentsvc/schemas/source"
	"agentsvc/transport/connector/clouddrive"
	"agentsvc/transport/connector/objectstore"
	"agentsvc/transport/connector/officedrive"
	"agentsvc/transport/connector/vendor"
	"agentsvc/transport/connector/web"
	"agentsvc/transport/connector/wiki"
	"agentsvc/transport/egress"
)

// Config holds the settings of Connectors. Guard is required.
type Config struct {
	Guard          *egress.Guard
	OfficeDriveURL string // with /v1.0; "" means the vendor's
	CloudDriveURL  string // with /drive/v3; "" means the vendor's
	// RequireTLS refuses plain http to sources with credentials, except to ranges on the guard's
	// allow list.
	RequireTLS bool
	Version    string // of the service
	Timing     vendor.Timing
}

// Connectors opens sources. It is safe for concurrent use.
type Connectors struct {
	cfg     Config
	clients *vendor.Clients
}

// New returns Connectors. Close them when done.
func New(cfg Config) *Connectors {
	if cfg.OfficeDriveURL == "" {
		cfg.OfficeDriveURL = officedrive.DefaultURL
	}
	if cfg.CloudDriveURL == "" {
		cfg.CloudDriveURL = clouddrive.DefaultURL
	}
	return &Connectors{cfg, vendor.NewClients(cfg.Guard, cfg.Version, cfg.RequireTLS, cfg.Timing)}
}

// Close closes idle connections.
func (c *Connectors) Close() { c.clients.Close() }

// Open returns a source for one walk and its fetches. It keeps the credentials as long as it
// lives. Errors are *source.Fault.
func (c *Connectors) Open(kind source.Kind, config source.Config, credentials map[string]string) (source.Source, error) {
	if source.TakesCredentials(kind) && len(source.CheckCredentials(kind, credentials)) > 0 {
		return nil, &source.Fault{Reason: "the source has no credentials", Lasting: true, Login: true}
	}
	switch kind {
	case source.OfficeDrive:
		return officedrive.Open(c.clients, c.cfg.OfficeDriveURL, config, credentials)
	case source.Wiki:
		return wiki.Open(c.clients, config, credentials)
	case source.CloudDrive:
		return clouddrive.Open(c.clients, c.cfg.CloudDriveURL, config, credentials)
	case source.ObjectStore:
		return objectstore.Open(c.clients, config, credentials)
	case source.Web:
		return web.Open(c.clients, config)
	}
	return nil, &source.Fault{Reason: "sources of the kind " + string(kind) + " are not synced", Lasting: true}
}
