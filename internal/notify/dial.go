package notify

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

var errPrivate = errors.New("the address is not a public one")

// newTransport dials public addresses alone unless told otherwise. The check is made on the address that is
// dialed, after the name was resolved; a proxy would hide that address, so none is used.
func newTransport(allowPrivate bool) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	if !allowPrivate {
		dialer.Control = refusePrivate
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    MaxWorkers,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxResponse,
	}
}

func refusePrivate(_, address string, _ syscall.RawConn) error {
	dialed, err := netip.ParseAddrPort(address)
	if err != nil || !public(dialed.Addr()) {
		return errPrivate
	}
	return nil
}

// publicLiteral is false only for an IP address that is not public; names are checked when they are dialed.
func publicLiteral(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err != nil || public(addr)
}

// public reports whether an address can be on the Internet (IANA special-purpose address registries).
func public(addr netip.Addr) bool {
	addr = addr.Unmap()
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return false
	}
	for _, special := range [...]netip.Prefix{
		prefix4(0, 0, 8), prefix4(100, 64, 10), prefix4(198, 18, 15), prefix4(240, 0, 4),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 0, 0}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x00, 0x64, 0xff, 0x9b}), 32), // NAT64 reaches any IPv4
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16),             // 6to4 too
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0xc0}), 10),             // site-local
	} {
		if special.Contains(addr) {
			return false
		}
	}
	return true
}

func prefix4(a, b byte, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), bits)
}
