// @ts-check
// What the environment says. The defaults fit the stack that `make run` starts, docker-compose.yml sets its own.

/**
 * @param {string} name
 * @param {string} or
 * @returns {string}
 */
function text(name, or) {
  return __ENV[name] || or;
}

/** The public door of paymentd. */
export const baseURL = text('BASE_URL', 'http://127.0.0.1:8080');
/** The private door: /metrics. */
export const adminURL = text('ADMIN_URL', 'http://127.0.0.1:9090');
/** The control port of the simulator. */
export const controlURL = text('CONTROL_URL', 'http://127.0.0.1:8091');
/** Keys of paymentd's roles. */
export const checkoutKey = text('CHECKOUT_KEY', 'dev-checkout-key-0123456789abcdef');
export const operatorKey = text('OPERATOR_KEY', 'dev-operator-key-0123456789abcdef');

/**
 * A positive number.
 *
 * @param {string} name
 * @param {number} or
 * @returns {number}
 */
export function number(name, or) {
  const n = Number(text(name, String(or)));
  if (!(n > 0)) {
    throw new Error(`${name}: ${__ENV[name]} is not a number above 0`);
  }
  return n;
}

const units = { ms: 0.001, s: 1, m: 60, h: 3600 };

/**
 * A duration in seconds, given as Go and k6 write it: 90s, 1m30s, 500ms.
 *
 * @param {string} name
 * @param {string} or
 * @returns {number}
 */
export function seconds(name, or) {
  const given = text(name, or);
  if (!/^(\d+(\.\d+)?(ms|s|m|h))+$/.test(given)) {
    throw new Error(`${name}: ${given} is not a duration such as 90s or 1m30s`);
  }
  let sum = 0;
  for (const [, n, unit] of given.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h)/g)) {
    sum += Number(n) * units[/** @type {keyof typeof units} */ (unit)];
  }
  return sum;
}

/**
 * The other way round, for options.
 *
 * @param {number} s
 * @returns {string}
 */
export function after(s) {
  return `${Math.round(s * 1000)}ms`;
}
