// @ts-check
// Both doors of paymentd (internal/httpapi/openapi.yaml).
import http from 'k6/http';
import { Trend } from 'k6/metrics';

import { adminURL, baseURL, checkoutKey, operatorKey } from './settings.js';

/** @typedef {{orderId: string, paymentKey: string, amount: number}} Order */
/** @typedef {{status: number, word: string, took: number, own: number, replayed: boolean, retryAfter: string, body: any, raw: string}} Answer word: the problem's code, else the payment's status; took and own: milliseconds, own without the gateway's */
/** @typedef {Record<string, number>} Series as /metrics writes them */

/** How long a confirm took, tagged with the word of its answer: PAID, PENDING, busy, pg_unavailable … */
export const paymentLatency = new Trend('payment_latency', true);

/** Longer than paymentd may take: ANSWER_WITHIN is 10 s by default. */
const patience = '60s';

/**
 * @param {number} n
 * @returns {string} so many letters and digits
 */
export function random(n) {
  let s = '';
  while (s.length < n) {
    s += Math.floor(Math.random() * 36).toString(36);
  }
  return s;
}

/**
 * An order that nobody has had. The simulator knows every paymentKey that begins with test_.
 *
 * @param {string} run from setup
 * @param {string} [kind] shows in both ids
 * @returns {Order}
 */
export function newOrder(run, kind = 'o') {
  const id = `${kind}-${run}-${random(12)}`;
  return { orderId: id, paymentKey: `test_${id}`, amount: 1000 + Math.floor(Math.random() * 99000) };
}

/**
 * What paymentd itself took: db and app of Server-Timing, in milliseconds.
 *
 * @param {string} timing
 * @returns {number}
 */
function own(timing) {
  let ms = 0;
  for (const [, dur] of timing.matchAll(/\b(?:db|app);dur=([\d.]+)/g)) {
    ms += Number(dur);
  }
  return ms;
}

/**
 * @param {import('k6/http').RefinedResponse<'text'>} res
 * @returns {Answer}
 */
function answer(res) {
  /** @type {any} */
  let body = null;
  try {
    body = res.json();
  } catch {
    body = null; // no answer, or not ours
  }
  return {
    status: res.status,
    word: body?.code ?? body?.status ?? res.error ?? '',
    took: res.timings.duration,
    own: own(res.headers['Server-Timing'] ?? ''),
    replayed: res.headers['Idempotent-Replayed'] === 'true',
    retryAfter: res.headers['Retry-After'] ?? '',
    body,
    raw: String(res.body ?? ''),
  };
}

/**
 * @param {string} key
 * @param {string} name
 * @returns {import('k6/http').Params & {responseType: 'text'}}
 */
function params(key, name) {
  return {
    headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' },
    tags: { name },
    timeout: patience,
    responseType: 'text',
  };
}

/**
 * @param {Answer} a
 * @param {Record<string, string>} tags
 * @returns {Answer}
 */
function timed(a, tags) {
  if (tags.phase !== 'setup') {
    paymentLatency.add(a.took, { word: a.word, ...tags });
  }
  return a;
}

/**
 * Confirms a payment. With the phase setup it counts for nothing.
 *
 * @param {Order} order
 * @param {Record<string, string>} [tags] for payment_latency
 * @returns {Answer}
 */
export function confirm(order, tags = {}) {
  const how = params(checkoutKey, 'confirm');
  if (tags.phase === 'setup') {
    how.responseCallback = http.expectedStatuses({ min: 200, max: 599 });
  }
  return timed(answer(http.post(`${baseURL}/payments/confirm`, JSON.stringify(order), how)), tags);
}

/**
 * Confirms all at once; options must allow so many with batch and batchPerHost.
 *
 * @param {Order[]} orders
 * @returns {Answer[]}
 */
export function confirmAll(orders) {
  const calls = orders.map((order) => ({
    method: 'POST',
    url: `${baseURL}/payments/confirm`,
    body: JSON.stringify(order),
    params: params(checkoutKey, 'confirm'),
  }));
  return http.batch(calls).map((res) => timed(answer(/** @type {import('k6/http').RefinedResponse<'text'>} */ (res)), {}));
}

/**
 * Reads the payment of an order.
 *
 * @param {string} orderId
 * @returns {Answer}
 */
export function read(orderId) {
  return answer(http.get(`${baseURL}/payments/${orderId}`, params(checkoutKey, 'read')));
}

/**
 * Compares payments with the gateway, as an operator asks for it.
 *
 * @param {{orderIds?: string[], olderThan?: string, limit?: number, dryRun?: boolean}} request
 * @returns {Answer}
 */
export function sync(request) {
  return answer(http.post(`${baseURL}/payments/sync`, JSON.stringify(request), params(operatorKey, 'sync')));
}

/**
 * Reads all series of the private door.
 *
 * @returns {Series}
 */
export function metrics() {
  const res = http.get(`${adminURL}/metrics`, { tags: { name: 'metrics' }, responseType: 'text' });
  if (res.status !== 200) {
    throw new Error(`paymentd: GET ${adminURL}/metrics: ${res.status} ${res.error}; is ADMIN_URL the private door?`);
  }
  /** @type {Series} */
  const all = {};
  for (const line of String(res.body).split('\n')) {
    const at = line.lastIndexOf(' ');
    if (at > 0 && line.startsWith('paymentd_')) {
      all[line.slice(0, at)] = Number(line.slice(at + 1));
    }
  }
  return all;
}

/**
 * The sum over the series of a name whose labels contain all the given ones.
 *
 * @param {Series} all
 * @param {string} name
 * @param {Record<string, string>} [labels]
 * @returns {number}
 */
export function sum(all, name, labels = {}) {
  const want = Object.entries(labels).map(([k, v]) => `${k}="${v}"`);
  let n = 0;
  for (const [series, value] of Object.entries(all)) {
    const at = series.indexOf('{');
    const labelled = at < 0 ? [] : series.slice(at + 1, -1).split(',');
    if ((at < 0 ? series : series.slice(0, at)) === name && want.every((w) => labelled.includes(w))) {
      n += value;
    }
  }
  return n;
}

/**
 * How often the breaker moved.
 *
 * @param {Series} all
 * @param {string} from
 * @param {string} to
 * @returns {number}
 */
export function moves(all, from, to) {
  return sum(all, 'paymentd_breaker_transitions_total', { from, to });
}
