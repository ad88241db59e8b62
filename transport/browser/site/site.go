package site

import (
	"crypto/rand"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentsvc/schemas/pause"
)

//go:embed pages/*.html
var pages embed.FS

// User and Password sign in.
const (
	User     = "clerk@shop.example"
	Password = "correct-horse-7"
)

// Knobs change how a site behaves. The zero value is a well-behaved back office.
type Knobs struct {
	Late          time.Duration // the cancel form appears this long after its page
	Renamed       bool          // the fields of the cancel form have other ids than before
	Refund        string        // the refund that the cancel form shows, whatever was asked
	ResetReason   bool          // the form forgets the reason that was selected
	Confirm       bool          // the cancel button asks with a dialog first
	Script        bool          // the cancel button sends its request by script
	Refuse        bool          // cancelling answers that it did not work, and does it all the same
	Away          string        // where cancelling redirects to
	Cut           bool          // cancelling takes effect, and its connection is cut without an answer
	Silent        bool          // cancelling takes effect and never answers
	Slow          time.Duration // cancelling takes effect and answers this much later
	Broken        bool          // cancelling answers with status 500 and has no effect
	SignInFails   bool          // every password is wrong
	Captcha       bool          // signing in asks for a picture instead
	Expired       bool          // orders ask to sign in again, whatever the cookie
	ElsewherePath bool          // the cancel form redirects to another page of the site
	Again         bool          // a cancelled order can be cancelled once more
	Hangs         string        // the request that is never answered and has no effect: "GET /orders/1001"
}

// Order is an order of the shop.
type Order struct {
	ID, Customer, Item, Status string
	Total                      float64
	Reason, Note               string
}

// Site is the back office, an http.Handler.
type Site struct {
	mux   *http.ServeMux
	pages *template.Template
	lab   bool

	mu       sync.Mutex // guards what is below
	knobs    Knobs
	orders   map[string]*Order
	effects  map[string]int // cancellations by order
	restores map[string]int
	sessions map[string]bool
	hits     map[string]int // requests by path
}

// Options configure a Site.
type Options struct {
	// Lab adds the laboratory of hostile pages under /lab/. For tests only.
	Lab bool
}

// New returns a Site with a few orders.
func New(o Options) *Site {
	s := &Site{lab: o.Lab, effects: map[string]int{}, restores: map[string]int{}, sessions: map[string]bool{}, hits: map[string]int{}, orders: map[string]*Order{}}
	for _, x := range []Order{
		{ID: "1001", Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9},
		{ID: "1002", Customer: "Grace Hopper", Item: "Wool blanket", Total: 1280},
		{ID: "1003", Customer: "Alan Turing", Item: "Bicycle pump", Total: 18.5},
		{ID: "1004", Customer: "Mary Somerville", Item: "Star atlas", Total: 75},
	} {
		x.Status = "open"
		s.orders[x.ID] = &x
	}
	s.pages = template.Must(template.New("").Funcs(template.FuncMap{"money": money}).ParseFS(pages, "pages/*.html"))
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /{$}", s.home)
	s.mux.HandleFunc("GET /login", s.showLogin)
	s.mux.HandleFunc("POST /login", s.login)
	s.mux.HandleFunc("GET /logout", s.logout)
	s.mux.HandleFunc("GET /orders", s.signedIn(s.list))
	s.mux.HandleFunc("GET /orders/{id}", s.signedIn(s.show))
	s.mux.HandleFunc("GET /orders/{id}/cancel", s.signedIn(s.form))
	s.mux.HandleFunc("POST /orders/{id}/cancel", s.signedIn(s.cancel))
	s.mux.HandleFunc("POST /orders/{id}/restore", s.signedIn(s.restore))
	if s.lab {
		s.mux.HandleFunc("GET /lab/{page}", s.laboratory)
	}
	return s
}

func money(f float64) string {
	whole := strconv.FormatFloat(f, 'f', 2, 64)
	if i := len(whole) - 6; i > 0 {
		whole = whole[:i] + "," + whole[i:]
	}
	return "$" + whole
}

// ServeHTTP implements http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := r.Method + " " + r.URL.Path
	s.mu.Lock()
	s.hits[request]++
	hangs := s.knobs.Hangs == request
	s.mu.Unlock()
	if hangs {
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 64<<10)) // or nothing tells when the client goes
		<-r.Context().Done()
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	s.mux.ServeHTTP(w, r)
}

// Set changes the knobs.
func (s *Site) Set(k Knobs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knobs = k
}

func (s *Site) set() Knobs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knobs
}

// Effects returns how often an order was cancelled.
func (s *Site) Effects(order string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.effects[order]
}

// Restores returns how often an order was restored.
func (s *Site) Restores(order string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restores[order]
}

// Hits returns how often a method and path were requested: "GET /orders".
func (s *Site) Hits(request string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits[request]
}

// Order returns a copy of an order.
func (s *Site) Order(id string) (Order, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.orders[id]
	if !ok {
		return Order{}, false
	}
	return *o, true
}

// Add adds an open order, or replaces the one of its id.
func (s *Site) Add(o Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Status == "" {
		o.Status = "open"
	}
	s.orders[o.ID] = &o
}

// Session returns the value of a cookie named session that is signed in.
func (s *Site) Session() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	token := hex.EncodeToString(b[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= 10_000 {
		clear(s.sessions)
	}
	s.sessions[token] = true
	return token
}

// view is what every page is given.
type view struct {
	Title  string
	In     bool
	Error  string
	Order  Order
	Orders []Order
	Query  string
	Knobs  Knobs
	Lab    string
	Values map[string]string
}

func (s *Site) render(w http.ResponseWriter, status int, page string, v view) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = s.pages.ExecuteTemplate(w, page+".html", v) // the client may be gone
}

func (s *Site) known(r *http.Request) bool {
	c, err := r.Cookie("session")
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[c.Value] && !s.knobs.Expired
}

func (s *Site) signedIn(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.known(r) {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		h(w, r)
	}
}

func (s *Site) home(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/orders", http.StatusSeeOther)
}

func (s *Site) showLogin(w http.ResponseWriter, _ *http.Request) {
	s.render(w, http.StatusOK, "login", view{Title: "Sign in", Knobs: s.set()})
}

func (s *Site) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if k := s.set(); k.SignInFails || k.Captcha || r.PostFormValue("user") != User || r.PostFormValue("password") != Password {
		s.render(w, http.StatusForbidden, "login", view{Title: "Sign in", Error: "The name or the password is wrong.", Knobs: k})
		return
	}
	http.SetCookie(w, &http.Cookie{Name: "session", Value: s.Session(), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/orders", http.StatusSeeOther)
}

func (s *Site) logout(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie("session"); err == nil {
		s.mu.Lock()
		delete(s.sessions, c.Value)
		s.mu.Unlock()
	}
	http.SetCookie(w, &http.Cookie{Name: "session", Path: "/", MaxAge: -1})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func (s *Site) list(w http.ResponseWriter, r *http.Request) {
	q := strings.TrimSpace(r.FormValue("q"))
	s.mu.Lock()
	var list []Order
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		o := s.orders[id]
		if q == "" || strings.Contains(o.ID, q) || strings.Contains(strings.ToLower(o.Customer), strings.ToLower(q)) {
			list = append(list, *o)
		}
	}
	s.mu.Unlock()
	s.render(w, http.StatusOK, "orders", view{Title: "Orders", In: true, Orders: list, Query: q})
}

func (s *Site) find(w http.ResponseWriter, r *http.Request) (Order, bool) {
	o, ok := s.Order(r.PathValue("id"))
	if !ok {
		s.render(w, http.StatusNotFound, "missing", view{Title: "No such order", In: true})
	}
	return o, ok
}

func (s *Site) show(w http.ResponseWriter, r *http.Request) {
	if o, ok := s.find(w, r); ok {
		s.render(w, http.StatusOK, "order", view{Title: "Order " + o.ID, In: true, Order: o, Knobs: s.set()})
	}
}

func (s *Site) form(w http.ResponseWriter, r *http.Request) {
	o, ok := s.find(w, r)
	if !ok {
		return
	}
	k := s.set()
	if k.ElsewherePath && r.FormValue("v") != "2" {
		http.Redirect(w, r, "/orders/1004/cancel?v=2", http.StatusSeeOther)
		return
	}
	s.render(w, http.StatusOK, "cancel", view{Title: "Cancel order " + o.ID, In: true, Order: o, Knobs: k})
}

func (s *Site) cancel(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	_ = r.ParseForm() // what cannot be read is missing
	o, ok := s.find(w, r)
	if !ok {
		return
	}
	k := s.set()
	if k.Broken {
		s.render(w, http.StatusInternalServerError, "missing", view{Title: "Something went wrong", In: true})
		return
	}
	s.mu.Lock()
	s.effects[o.ID]++
	kept := s.orders[o.ID]
	kept.Status, kept.Reason, kept.Note = "cancelled", r.PostFormValue("reason"), r.PostFormValue("note")
	if refund, err := strconv.ParseFloat(r.PostFormValue("refund"), 64); err == nil {
		kept.Total = refund
	}
	o = *kept
	s.mu.Unlock()
	pause.For(r.Context(), k.Slow)
	switch {
	case k.Cut:
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			c.Close()
		}
		return
	case k.Silent:
		<-r.Context().Done()
		return
	case k.Away != "":
		http.Redirect(w, r, k.Away, http.StatusSeeOther)
		return
	case k.Refuse:
		s.render(w, http.StatusOK, "order", view{Title: "Order " + o.ID, In: true, Error: "The order could not be cancelled.", Order: o})
		return
	}
	http.Redirect(w, r, fmt.Sprintf("/orders/%s?done=1", o.ID), http.StatusSeeOther)
}

func (s *Site) restore(w http.ResponseWriter, r *http.Request) {
	o, ok := s.find(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	s.restores[o.ID]++
	s.orders[o.ID].Status = "open"
	s.mu.Unlock()
	http.Redirect(w, r, "/orders/"+o.ID, http.StatusSeeOther)
}
