// Package web is what both doors of paymentd share: bearer keys and roles, strict JSON, problem+json
// (RFC 9457), HTTP metrics, and one log event per request.
package web

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"paymentd/internal/payment"
)

// What Options.BodyWithin and Options.WriteWithin are when they are 0.
const (
	defaultBodyWithin  = 5 * time.Second
	defaultWriteWithin = 10 * time.Second
)

// Handler answers a request or returns an error, which becomes a problem: a *payment.Error by its code, any
// other error as 500 with a fixed text. A handler that has begun to answer returns nil or logs nothing more.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Plain makes a Handler of an http.Handler that writes its own errors.
func Plain(h http.Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}

// Options are the parts of a Door; Log, Metrics and Keys are required.
type Options struct {
	Log     *slog.Logger
	Metrics *Metrics
	Keys    []Key
	// Quiet are routes whose good answers are logged at debug level: probes and scrapes.
	Quiet []string
	// BodyWithin bounds how long a client may take to send its body; 0 means 5 s.
	BodyWithin time.Duration
	// WriteWithin bounds how long a client may take to read a piece of an answer; 0 means 10 s.
	WriteWithin time.Duration
}

// Door is one listener's set of routes, with what every route of it needs.
type Door struct {
	log         *slog.Logger
	metrics     *Metrics
	keys        []Key
	quiet       []string
	bodyWithin  time.Duration
	writeWithin time.Duration
	router      *chi.Mux
}

// NewDoor makes a door without routes; it refuses missing parts.
func NewDoor(o Options) (*Door, error) {
	if o.Log == nil || o.Metrics == nil || len(o.Keys) == 0 {
		return nil, errors.New("door: log, metrics and at least one key are required")
	}
	d := &Door{log: o.Log, metrics: o.Metrics, keys: o.Keys, quiet: o.Quiet, router: chi.NewRouter()}
	d.bodyWithin, d.writeWithin = cmp.Or(o.BodyWithin, defaultBodyWithin), cmp.Or(o.WriteWithin, defaultWriteWithin)
	d.router.NotFound(d.answer(func(http.ResponseWriter, *http.Request) error {
		return &payment.Error{Code: payment.CodeNotFound, Public: "There is no such route."}
	}))
	d.router.MethodNotAllowed(d.answer(d.methodNotAllowed))
	return d, nil
}

// Open adds a route that needs no key.
func (d *Door) Open(method, route string, h Handler) {
	d.metrics.register(route)
	d.router.Method(method, route, d.answer(h))
}

// For adds a route that only keys of the given roles may call.
func (d *Door) For(roles Roles, method, route string, h Handler) {
	d.Open(method, route, func(w http.ResponseWriter, r *http.Request) error {
		key, err := authorize(d.keys, roles, r)
		if err != nil {
			if code := codeOf(err); code == payment.CodeUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			return err
		}
		EventOf(r.Context()).Key = key
		return h(w, r)
	})
}

// Routes are the routes of the door, for tests that compare them with a description.
func (d *Door) Routes() chi.Routes { return d.router }

// ServeHTTP answers one request, writes its one log line and counts it. A panic becomes a 500, or drops the
// connection (http.ErrAbortHandler) if the answer had begun.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := &Event{ArrivedAt: time.Now(), RequestID: requestID(r)}
	routing := chi.NewRouteContext()
	ctx := context.WithValue(r.Context(), eventKey{}, e)
	ctx = context.WithValue(ctx, chi.RouteCtxKey, routing)
	r = r.WithContext(ctx)
	control := http.NewResponseController(w)
	out := &recorder{ResponseWriter: w, control: control, writeWithin: d.writeWithin}
	// The deadline of the answer before on this connection.
	_ = control.SetWriteDeadline(time.Time{})
	out.Header().Set("X-Request-Id", e.RequestID)
	if r.ContentLength != 0 {
		// A body that trickles in must not hold the connection; net/http lifts the deadline at its end.
		_ = control.SetReadDeadline(e.ArrivedAt.Add(d.bodyWithin))
	}
	defer func() {
		fault := recover()
		// An answer that breaks off must not look whole.
		abort := fault != nil && (isAbort(fault) || out.status != 0)
		if fault != nil && !isAbort(fault) {
			e.panicked(fault, debug.Stack())
			out.problem(e)
		}
		e.clientGone = r.Context().Err() != nil
		d.finish(r, out, e, d.route(routing))
		if abort {
			panic(http.ErrAbortHandler)
		}
	}()
	d.router.ServeHTTP(out, r)
}

// answer turns a handler's error into a problem.
func (d *Door) answer(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		e := EventOf(r.Context())
		e.err = err
		if out, ok := w.(*recorder); ok {
			out.problem(e)
			return
		}
		writeProblem(w, ProblemOf(err, e.RequestID))
	}
}

func (d *Door) methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if d.router.Match(chi.NewRouteContext(), method, r.URL.Path) {
			w.Header().Add("Allow", method)
		}
	}
	return &payment.Error{Code: payment.CodeMethodNotAllowed, Public: "The route does not know this method; see Allow."}
}

// route is the pattern that matched, or "other": a path of the caller's own invention is no label.
func (d *Door) route(routing *chi.Context) string {
	if pattern := routing.RoutePattern(); d.metrics.known(pattern) {
		return pattern
	}
	return otherRoute
}

func (d *Door) finish(r *http.Request, out *recorder, e *Event, route string) {
	took := time.Since(e.ArrivedAt)
	status := out.code()
	d.metrics.observe(route, status, took)
	level := slog.LevelInfo
	switch {
	case status == http.StatusInternalServerError:
		level = slog.LevelError
	case status > http.StatusInternalServerError:
		level = slog.LevelWarn
	case status < http.StatusBadRequest && slices.Contains(d.quiet, route):
		level = slog.LevelDebug
	}
	var room [maxAttrs]slog.Attr // does not leave the stack
	attrs := append(room[:0],
		slog.String("method", knownMethod(r.Method)),
		slog.String("route", route),
		slog.Int("status", status),
	)
	d.log.LogAttrs(r.Context(), level, "request", e.attrs(attrs, took)...)
}

func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}

func isAbort(fault any) bool {
	err, ok := fault.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	control     *http.ResponseController
	writeWithin time.Duration
	status      int
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader remembers the first final status.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implies 200 as net/http does. A client that does not read must not hold the connection.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(w.writeWithin))
	return w.ResponseWriter.Write(b)
}

func (w *recorder) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// problem answers the event's error unless an answer has begun.
func (w *recorder) problem(e *Event) {
	p := ProblemOf(e.err, e.RequestID)
	e.code = p.Code
	if w.status == 0 {
		writeProblem(w, p)
	}
}
