// Package deploy holds what runs beside paymentd: alert rules, dashboards, container files. Its tests keep the
// files true; its one function finds the programs that read them.
package deploy
