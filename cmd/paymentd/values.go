package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Secret is a value that no log, error or dump may show.
type Secret string

const redacted = "[redacted]"

// String hides the value.
func (Secret) String() string { return redacted }

// GoString hides the value from %#v.
func (Secret) GoString() string { return redacted }

// MarshalJSON hides the value from encoders, slog's of a whole struct among them.
func (Secret) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// LogValue hides the value from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// Rate is N per period; the zero Rate is off.
type Rate struct {
	N   int
	Per time.Duration
}

// PerSecond is the rate as calls per second.
func (r Rate) PerSecond() float64 {
	if r.Per == 0 {
		return 0
	}
	return float64(r.N) / r.Per.Seconds()
}

// Switch is on or off.
type Switch bool

func parseRate(text string) (any, error) {
	if text == "0" {
		return Rate{}, nil
	}
	n, unit, ok := strings.Cut(text, "/")
	count, err := strconv.Atoi(n)
	if !ok || err != nil || count < 0 || count > 1_000_000 {
		return nil, errors.New("not a rate")
	}
	switch {
	case count == 0:
		return Rate{}, nil
	case unit == "s":
		return Rate{count, time.Second}, nil
	case unit == "m":
		return Rate{count, time.Minute}, nil
	default:
		return nil, errors.New("not a rate")
	}
}

func parseSwitch(text string) (any, error) {
	switch text {
	case "on":
		return Switch(true), nil
	case "off":
		return Switch(false), nil
	default:
		return nil, errors.New("not a switch")
	}
}

func parseDuration(text string) (any, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return nil, errors.New("not a duration")
	}
	return d, nil
}
